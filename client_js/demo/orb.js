/**
 * The orb: a quiet shape that breathes with the conversation. Its body is the assistant, its ring the person.
 *
 * `outline` is pure; `Orb` draws on a canvas, in the colours that the page's style gives to the current state. It
 * stands still for people who asked their system for less motion, and draws nothing while it is not visible.
 */

/** Points of an outline: enough for soft shapes. */
const POINTS = 72;

/** Time between frames while a voice is heard, and while the orb only breathes: cheap on a telephone. */
const FRAME_MS = 33;
const QUIET_FRAME_MS = 80;

/** Waves that run around the body: how many, how fast, how high. */
const WAVES = [
  { count: 2, speed: 0.9, height: 0.5 },
  { count: 3, speed: -1.3, height: 0.33 },
  { count: 5, speed: 1.9, height: 0.17 },
];

/**
 * Return a closed shape around 0, 0 as points.
 * @param {number} radius
 * @param {number} swell how far it may leave the circle, as part of the radius
 * @param {number} seconds
 * @returns {[x: number, y: number][]}
 */
export function outline(radius, swell, seconds) {
  return Array.from({ length: POINTS }, (_, place) => {
    const angle = (2 * Math.PI * place) / POINTS;
    let wave = 0;
    for (const { count, speed, height } of WAVES) wave += height * Math.sin(count * angle + speed * seconds);
    const reach = radius * (1 + swell * wave);
    return [reach * Math.cos(angle), reach * Math.sin(angle)];
  });
}

/** @typedef {{ body: string, glow: string, ring: string }} Colours as #rrggbb */

/** The orb on its canvas. */
export class Orb {
  #canvas;
  #context;
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  /** @type {Colours} */
  #colours = { body: "", glow: "", ring: "" };
  #mood = "idle";
  #voice = 0; // the assistant's loudness as it is drawn, 0 to 1
  #ear = 0; // the person's loudness as it is drawn
  #drawnAt = 0; // 0: not in these colours
  /** @type {() => { input: number, output: number }} */
  #levels;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {() => { input: number, output: number }} levels from 0 to 1
   */
  constructor(canvas, levels) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d");
    this.#levels = levels;
    const next = (/** @type {number} */ now) => {
      this.#frame(now);
      requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
  }

  /** Take the colours of a state from the page's style. @param {string} mood */
  restyle(mood) {
    this.#mood = mood;
    const style = getComputedStyle(this.#canvas);
    const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    this.#colours = { body: read("--orb-body"), glow: read("--orb-glow"), ring: read("--orb-ring") };
    this.#drawnAt = 0;
  }

  /** @param {number} now */
  #frame(now) {
    const busy = this.#mood === "thinking" || this.#mood === "connecting";
    const quiet = !busy && this.#voice + this.#ear < 0.01;
    if (this.#drawnAt && now - this.#drawnAt < (quiet ? QUIET_FRAME_MS : FRAME_MS)) return;
    const { input, output } = this.#levels();
    if (!this.#colours.body || (this.#drawnAt && quiet && this.#still.matches && !input && !output)) return;
    this.#drawnAt = now;
    this.#voice += 0.35 * (output - this.#voice);
    this.#ear += 0.35 * (input - this.#ear);
    this.#draw(this.#still.matches ? 0 : now / 1000);
  }

  /** @param {number} seconds */
  #draw(seconds) {
    const context = this.#context;
    if (context === null) return;
    const size = this.#fit();
    const unit = size / 2;
    const moving = this.#still.matches ? 0 : 1;
    const breath = 1 + 0.015 * moving * Math.sin(seconds * 1.6);
    const swell = moving * (0.03 + 0.075 * this.#voice);
    const radius = unit * (0.52 + 0.1 * this.#voice) * breath;
    context.setTransform(1, 0, 0, 1, unit, unit);
    context.clearRect(-unit, -unit, size, size);
    this.#halo(context, unit, radius);
    this.#body(context, radius * 1.1, swell * 1.4, seconds * 0.8 + 2, 0.28);
    this.#body(context, radius, swell, seconds, 1);
    this.#ring(context, unit, seconds);
  }

  /** Match the canvas to its place on the screen; return its size in its own pixels. */
  #fit() {
    const size = Math.round(this.#canvas.clientWidth * Math.min(2, devicePixelRatio || 1)) || 1;
    if (this.#canvas.width !== size) this.#canvas.width = this.#canvas.height = size;
    return size;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} unit @param {number} radius */
  #halo(context, unit, radius) {
    const halo = context.createRadialGradient(0, 0, radius * 0.7, 0, 0, unit);
    halo.addColorStop(0, this.#colours.glow);
    halo.addColorStop(1, `${this.#colours.glow}00`); // the same colour: "transparent" is black and would look dirty
    context.globalAlpha = 0.35 + 0.4 * this.#voice;
    context.fillStyle = halo;
    context.beginPath();
    context.arc(0, 0, unit, 0, 2 * Math.PI);
    context.fill();
    context.globalAlpha = 1;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} radius @param {number} swell @param {number} seconds @param {number} alpha
   */
  #body(context, radius, swell, seconds, alpha) {
    const fill = context.createRadialGradient(-radius * 0.35, -radius * 0.45, radius * 0.1, 0, 0, radius * 1.2);
    fill.addColorStop(0, this.#colours.glow);
    fill.addColorStop(1, this.#colours.body);
    context.globalAlpha = alpha;
    context.fillStyle = fill;
    context.beginPath();
    for (const [x, y] of outline(radius, swell, seconds)) context.lineTo(x, y);
    context.closePath();
    context.fill();
    context.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} unit @param {number} seconds */
  #ring(context, unit, seconds) {
    const busy = this.#mood === "thinking" || this.#mood === "connecting";
    context.strokeStyle = this.#colours.ring;
    context.lineCap = "round";
    context.lineWidth = unit * (busy ? 0.022 : 0.012 + 0.05 * this.#ear);
    context.globalAlpha = busy ? 0.9 : 0.25 + 0.7 * this.#ear;
    const from = busy ? seconds * 2.4 : 0;
    context.beginPath();
    context.arc(0, 0, unit * (0.78 + 0.12 * this.#ear), from, from + Math.PI * (busy ? 0.6 : 2));
    context.stroke();
    context.globalAlpha = 1;
  }
}
