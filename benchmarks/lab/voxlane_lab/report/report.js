"use strict";
/* Draws the calls of the report, plays them, and switches the colours. The data are in #data; every text from outside
   enters the page through textContent. */

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const THEME = "voxlane.theme";
  const CHARACTER = 6.2; // about the width of a letter of the labels, in pixels
  const LEAST_PX_PER_S = 34;
  const PALETTE = 6;
  const MOST_ROWS = 9;
  const data = JSON.parse(document.getElementById("data").textContent);

  /** Return an SVG element with attributes, inside a parent. */
  function draw(parent, name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  /** Return the bytes of a base64 text. */
  function bytes(text) {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  }

  /** Return seconds as 0:03.42. */
  function clock(seconds) {
    const minutes = Math.floor(seconds / 60);
    return `${minutes}:${(seconds - minutes * 60).toFixed(2).padStart(5, "0")}`;
  }

  /* ---- colours */

  function installTheme() {
    const sheet = document.getElementById("dark");
    const button = document.getElementById("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => matchMedia(sheet.media).matches;
    const show = () => button.setAttribute("aria-pressed", String(isDark()));
    const use = (theme) => {
      if (theme === "dark" || theme === "light") sheet.media = theme === "dark" ? "screen" : "not all";
      show();
    };
    const remembered = () => {
      try {
        return localStorage.getItem(THEME);
      } catch {
        return null; // some browsers give files no storage
      }
    };
    button.addEventListener("click", () => {
      const theme = isDark() ? "light" : "dark";
      try {
        localStorage.setItem(THEME, theme);
      } catch {
        // then it is not remembered
      }
      use(theme);
    });
    system.addEventListener("change", show);
    use(remembered());
  }

  /* ---- sound */

  /** Return the 16-bit value of a μ-law byte. */
  function decoded(code) {
    const value = ~code & 0xff;
    const size = ((2 * (value & 15) + 33) << (((value >> 4) & 7) + 2)) - 132;
    return value & 0x80 ? -size : size;
  }

  /** Return embedded sound (both tracks after each other, as μ-law, deflated) as the address of a stereo WAV. */
  async function soundOf(call) {
    const packed = new Blob([bytes(call.sound)]).stream().pipeThrough(new DecompressionStream("deflate"));
    const codes = new Uint8Array(await new Response(packed).arrayBuffer());
    const frames = codes.length / 2;
    const file = new DataView(new ArrayBuffer(44 + frames * 4));
    const word = (at, text) => [...text].forEach((letter, n) => file.setUint8(at + n, letter.charCodeAt(0)));
    word(0, "RIFF"); file.setUint32(4, 36 + frames * 4, true); word(8, "WAVEfmt ");
    file.setUint32(16, 16, true); file.setUint16(20, 1, true); file.setUint16(22, 2, true);
    file.setUint32(24, data.rate, true); file.setUint32(28, data.rate * 4, true);
    file.setUint16(32, 4, true); file.setUint16(34, 16, true);
    word(36, "data"); file.setUint32(40, frames * 4, true);
    const levels = Int16Array.from({ length: 256 }, (_, code) => decoded(code));
    for (let n = 0; n < frames; n += 1) {
      file.setInt16(44 + n * 4, levels[codes[n]], true);
      file.setInt16(46 + n * 4, levels[codes[frames + n]], true);
    }
    return URL.createObjectURL(new Blob([file.buffer], { type: "audio/wav" }));
  }

  /** Plays one call at a time. */
  const player = {
    audio: document.getElementById("player"),
    view: null,
    async choose(view) {
      if (this.view === view) return;
      this.audio.pause();
      if (this.view) this.view.showPlaying(false);
      this.view = view;
      view.address ??= view.call.sound ? await soundOf(view.call) : view.call.file;
      this.audio.src = view.address;
    },
    async playFrom(view, seconds) {
      await this.choose(view);
      this.audio.currentTime = seconds;
      try {
        await this.audio.play();
      } catch (problem) {
        if (problem.name !== "AbortError") view.say("The sound cannot be played: is the folder calls/ beside this file?");
      }
    },
  };
  for (const name of ["play", "pause", "ended"]) {
    player.audio.addEventListener(name, () => player.view?.showPlaying(!player.audio.paused && !player.audio.ended));
  }
  const follow = () => {
    if (player.view && !player.audio.paused) player.view.moveHead(player.audio.currentTime);
    requestAnimationFrame(follow);
  };
  requestAnimationFrame(follow);

  /* ---- a call */

  /** Give each label the first row in which it does not touch another; return how many rows there are. */
  function pack(labels) {
    const ends = [];
    for (const label of labels) {
      let row = ends.findIndex((end) => end < label.left);
      if (row < 0) row = ends.length;
      ends[row] = label.right;
      label.row = row;
    }
    return ends.length;
  }

  class CallView {
    constructor(root, call) {
      this.call = call;
      this.zoom = 1;
      this.head = 0;
      this.frame = root.querySelector(".timeline");
      this.scroller = root.querySelector(".timeline .scroll");
      this.playButton = root.querySelector(".play");
      this.clock = root.querySelector(".clock");
      [this.out, this.in] = root.querySelectorAll(".zoom button");
      this.waves = { person: bytes(call.person), agent: bytes(call.agent) };
      this.playButton.addEventListener("click", () => this.toggle());
      this.out.addEventListener("click", () => this.zoomTo(this.zoom / 2));
      this.in.addEventListener("click", () => this.zoomTo(this.zoom * 2));
      this.scroller.addEventListener("pointermove", (event) => this.hover(this.secondsAt(event)));
      this.scroller.addEventListener("pointerleave", () => this.hover(null));
      this.scroller.addEventListener("click", (event) => player.playFrom(this, this.secondsAt(event)));
      this.scroller.addEventListener("keydown", (event) => this.key(event));
      this.paint();
      this.moveHead(0);
    }

    say(text) {
      this.clock.textContent = text;
    }

    toggle() {
      if (player.view === this && !player.audio.paused) player.audio.pause();
      else void player.playFrom(this, this.head >= this.call.length - 0.05 ? 0 : this.head);
    }

    showPlaying(playing) {
      this.playButton.setAttribute("aria-pressed", String(playing));
      this.playButton.querySelector(".words").textContent = playing ? "Pause" : "Play";
    }

    secondsAt(event) {
      const x = event.clientX - this.svg.getBoundingClientRect().left;
      return Math.min(Math.max(x / this.scale, 0), this.call.length);
    }

    key(event) {
      const steps = { ArrowLeft: -0.1, ArrowRight: 0.1, PageUp: 1, PageDown: -1 };
      const places = { Home: 0, End: this.call.length };
      if (event.key === " " || event.key === "Enter") this.toggle();
      else if (event.key in steps) this.seek(this.head + steps[event.key] * (event.shiftKey ? 10 : 1));
      else if (event.key in places) this.seek(places[event.key]);
      else return;
      event.preventDefault();
    }

    seek(seconds) {
      const place = Math.min(Math.max(seconds, 0), this.call.length);
      if (player.view === this) player.audio.currentTime = place;
      this.moveHead(place);
    }

    zoomTo(zoom) {
      const middle = (this.scroller.scrollLeft + this.scroller.clientWidth / 2) / this.scale;
      this.zoom = Math.min(Math.max(zoom, 1), 16);
      this.paint();
      this.moveHead(this.head);
      this.scroller.scrollLeft = middle * this.scale - this.scroller.clientWidth / 2;
    }

    moveHead(seconds) {
      this.head = seconds;
      const x = seconds * this.scale;
      this.headMark.setAttribute("transform", `translate(${x.toFixed(1)} 0)`);
      this.clock.textContent = `${clock(seconds)} of ${clock(this.call.length)}`;
      this.scroller.setAttribute("aria-valuenow", seconds.toFixed(2));
      this.scroller.setAttribute("aria-valuetext", `${seconds.toFixed(1)} seconds`);
      const { scrollLeft, clientWidth } = this.scroller;
      if (x < scrollLeft || x > scrollLeft + clientWidth - 24) this.scroller.scrollLeft = x - clientWidth / 3;
    }

    hover(seconds) {
      this.hoverMark.style.display = seconds === null ? "none" : "";
      if (seconds === null) return;
      const x = seconds * this.scale;
      const left = Math.min(Math.max(x, 26), this.width - 26);
      this.hoverMark.firstChild.setAttribute("transform", `translate(${x.toFixed(1)} 0)`);
      this.hoverMark.lastChild.setAttribute("transform", `translate(${left.toFixed(1)} 0)`);
      this.hoverMark.querySelector("text").textContent = `${seconds.toFixed(2)} s`;
    }

    /* Everything below draws. Places are in pixels; `this.y` is the next free height. */

    paint() {
      const space = this.scroller.clientWidth || 800;
      this.width = Math.max(space, this.call.length * LEAST_PX_PER_S) * this.zoom;
      this.scale = this.width / this.call.length;
      this.out.disabled = this.zoom <= 1;
      this.in.disabled = this.zoom >= 16;
      for (const name of this.frame.querySelectorAll(".lane-name")) name.remove();
      this.svg?.remove();
      this.svg = draw(this.scroller, "svg", { width: this.width, "aria-hidden": "true" });
      this.defs();
      this.under = draw(this.svg, "g", {});
      this.y = 0;
      this.axis();
      this.stepFlags();
      this.personLane();
      this.figureLane();
      this.agentLane();
      this.eventLane();
      this.guides();
      this.marks();
      this.svg.setAttribute("height", this.y);
    }

    defs() {
      const defs = draw(this.svg, "defs", {});
      this.id = `h${Math.random().toString(36).slice(2)}`;
      for (const kind of ["stale", "held"]) {
        const pattern = draw(defs, "pattern", {
          id: `${this.id}-${kind}`, width: 7, height: 7, patternUnits: "userSpaceOnUse",
          patternTransform: `rotate(${kind === "stale" ? 45 : -45})`,
        });
        draw(pattern, "line", { x1: 0, y1: 0, x2: 0, y2: 7, class: `${kind}-line` });
      }
    }

    lane(name) {
      const label = document.createElement("span");
      label.className = "lane-name";
      label.textContent = name;
      label.style.top = `${this.y + 3}px`;
      this.frame.append(label);
      draw(this.under, "line", { x1: 0, x2: this.width, y1: this.y, y2: this.y, class: "lane-line" });
    }

    axis() {
      const every = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60].find((step) => step * this.scale >= 64) ?? 120;
      this.gridXs = [];
      for (let n = 0; n * every <= this.call.length; n += 1) {
        const x = n * every * this.scale;
        this.gridXs.push(x);
        if (x < this.width - 30) draw(this.svg, "text", { x: x + 4, y: 14 }, `${+(n * every).toFixed(1)} s`);
      }
      this.y = 22;
    }

    stepFlags() {
      const labels = this.call.steps.filter((step) => step.voiced.length).map((step) => {
        const text = step.name;
        const width = text.length * CHARACTER + 14;
        const at = step.voiced[0][0] * this.scale;
        return { text, at, left: at, right: at + width + 6, width };
      });
      const rows = pack(labels);
      for (const label of labels) {
        const y = this.y + 4 + label.row * 18;
        const left = Math.min(label.left, Math.max(0, this.width - label.width));
        draw(this.svg, "rect", { x: label.at - 1, y, width: 3, height: 14, class: "step-flag" });
        draw(this.svg, "text", { x: left + 7, y: y + 11, class: "step-text" }, label.text);
      }
      this.y += Math.max(rows, 1) * 18 + 6;
    }

    personLane() {
      const height = 66;
      this.lane("Person");
      for (const step of this.call.steps) {
        for (const [from, to] of step.voiced) {
          const box = { x: from * this.scale, y: this.y, width: (to - from) * this.scale, height, class: "voiced" };
          draw(this.under, "rect", box);
        }
      }
      const path = this.wave(this.waves.person, 0, this.call.length, this.y + height / 2, height / 2 - 4);
      draw(this.svg, "path", { d: path, class: "wave-person" });
      this.y += height;
    }

    figureLane() {
      const marks = this.call.steps.flatMap((step) => step.marks).map((mark) => {
        const from = mark.from * this.scale;
        const to = mark.to === null ? from : mark.to * this.scale;
        const width = mark.text.length * CHARACTER + 12;
        const beside = to - from < width + 4;
        const text = beside ? Math.min(to + 6, Math.max(0, this.width - width)) : (from + to) / 2;
        const right = beside ? Math.max(to, text + width) : to + 8;
        return { ...mark, from, to, beside, text_x: text, text: mark.text, left: Math.min(from, text) - 4, right };
      }).sort((a, b) => a.left - b.left);
      const rows = pack(marks);
      if (!rows) return;
      this.lane("Measured");
      this.y += 20;
      for (const mark of marks) {
        const y = this.y + mark.row * 20 + 8;
        const group = draw(this.svg, "g", { class: mark.bad ? "bad" : "" });
        draw(group, "title", {}, mark.title);
        if (mark.to > mark.from) this.dimension(group, mark, y);
        else draw(group, "circle", { cx: mark.from, cy: y, r: 3.5, class: "dim-end" });
        const anchor = mark.beside ? "start" : "middle";
        draw(group, "text", { x: mark.text_x, y: mark.beside ? y + 4 : y - 3, "text-anchor": anchor, class: "dim-text" }, mark.text);
      }
      this.y += rows * 20 + 4;
    }

    dimension(group, { from, to }, y) {
      draw(group, "path", { d: `M${from} ${y - 5}v10M${to} ${y - 5}v10M${from} ${y}H${to}`, class: "dim" });
      if (to - from > 14) {
        draw(group, "path", { d: `M${to} ${y}l-6 -3v6zM${from} ${y}l6 -3v6z`, class: "dim-end" });
      }
    }

    agentLane() {
      const height = 84;
      const middle = this.y + height / 2;
      this.lane("Agent, at the ear");
      for (const [from, to] of this.call.held) {
        const box = { x: from * this.scale, y: this.y, width: (to - from) * this.scale, height };
        draw(this.under, "rect", { ...box, class: "held" });
        draw(this.under, "rect", { ...box, fill: `url(#${this.id}-held)` });
        this.note(from, to, this.y + 13, "held", "");
      }
      for (const [from, to] of this.call.lowered) {
        const box = { x: from * this.scale, y: this.y + 14, width: (to - from) * this.scale, height: height - 20 };
        draw(this.svg, "rect", { ...box, class: "lowered" });
        this.note(from, to, this.y + 11, "lowered", "");
      }
      for (const span of this.call.owners) {
        const path = this.wave(this.waves.agent, span.from, span.to, middle, height / 2 - 8);
        draw(this.svg, "path", { d: path, class: `own-${span.owner % PALETTE}` });
      }
      for (const [from, to] of this.call.stale) {
        const box = { x: from * this.scale, y: this.y + 2, width: Math.max((to - from) * this.scale, 2), height: height - 4 };
        draw(this.svg, "rect", { ...box, class: "stale-band" });
        draw(this.svg, "rect", { ...box, fill: `url(#${this.id}-stale)`, opacity: 0.75 });
        this.note(from, to, this.y + height + 12, "stale", "stale-text");
      }
      this.y += height;
      this.ownerLine();
    }

    ownerLine() {
      let end = -1;
      let named = -1;
      for (const span of this.call.owners) {
        const [x, width] = [span.from * this.scale, (span.to - span.from) * this.scale];
        draw(this.svg, "rect", { x, y: this.y - 3, width, height: 3, class: `own-${span.owner % PALETTE}` });
        const text = this.call.responses[span.owner];
        const stale = this.call.stale.some(([from, to]) => from < span.to && to > span.from && to - from > (span.to - span.from) / 2);
        if (stale || span.owner === named || x < end || text.length * CHARACTER > width + 60) continue;
        draw(this.svg, "text", { x: x + 2, y: this.y + 12, class: `own-text own-${span.owner % PALETTE}`, style: `fill:var(--own-${span.owner % PALETTE})` }, text);
        end = x + text.length * CHARACTER + 8;
        named = span.owner;
      }
      this.y += 20;
    }

    note(from, to, y, text, kind) {
      const x = ((from + to) / 2) * this.scale;
      draw(this.svg, "text", { x, y, "text-anchor": "middle", class: kind }, text);
    }

    eventLane() {
      this.lane("Events");
      this.y += 20;
      const labels = this.call.events.map((event) => {
        const text = event.count > 1 ? `${event.name} ×${event.count}` : event.name;
        const left = event.at * this.scale;
        return { ...event, text, left, right: Math.max(left + text.length * 6.4 + 16, event.to * this.scale + 6) };
      });
      const rows = Math.min(pack(labels), MOST_ROWS);
      for (const label of labels) this.event(label, rows);
      this.y += rows * 17 + 8;
    }

    event(label, rows) {
      label.left = Math.max(label.left, 5); // what happens at once is drawn whole
      const hidden = label.row >= rows;
      const y = this.y + Math.min(label.row, rows) * 17;
      const group = draw(this.svg, "g", {});
      draw(group, "title", {}, `${label.at.toFixed(2)} s, ${data.sides[label.side]}: ${label.text}${label.detail ? `\n${label.detail}` : ""}`);
      if (hidden) return void draw(group, "rect", { x: label.left, y: y - 2, width: 1.5, height: 8, class: `event ${label.side}` });
      if (label.to > label.at) {
        draw(group, "rect", { x: label.left, y: y + 1, width: (label.to - label.at) * this.scale, height: 13, rx: 3, class: "event-span" });
      }
      const shape = { sent: `M${label.left} ${y + 3}l4 8h-8z`, got: `M${label.left} ${y + 11}l4 -8h-8z`, card: `M${label.left} ${y + 3}l4 4l-4 4l-4 -4z` };
      draw(group, "path", { d: shape[label.side], class: `event-dot ${label.side}` });
      draw(group, "text", { x: label.left + 7, y: y + 11, class: "event-text" }, label.text);
    }

    guides() {
      for (const x of this.gridXs) draw(this.under, "line", { x1: x, x2: x, y1: 0, y2: this.y, class: "grid" });
      for (const step of this.call.steps) {
        if (!step.voiced.length) continue;
        for (const seconds of [step.voiced[0][0], step.voiced.at(-1)[1]]) {
          const x = seconds * this.scale;
          draw(this.under, "line", { x1: x, x2: x, y1: 24, y2: this.y, class: "guide" });
        }
      }
    }

    marks() {
      this.hoverMark = draw(this.svg, "g", { style: "display:none" });
      draw(draw(this.hoverMark, "g", {}), "line", { x1: 0, x2: 0, y1: 0, y2: this.y, class: "hover-line" });
      const box = draw(this.hoverMark, "g", {});
      draw(box, "rect", { x: -26, y: 2, width: 52, height: 17, rx: 5, class: "hover-box" });
      draw(box, "text", { x: 0, y: 14, "text-anchor": "middle", class: "hover-text" });
      this.headMark = draw(this.svg, "g", {});
      draw(this.headMark, "line", { x1: 0, x2: 0, y1: 0, y2: this.y, class: "head-line" });
      draw(this.headMark, "path", { d: "M-5 0h10l-5 7z", class: "head-knob" });
    }

    /** Return the outline of a track between two moments, about a middle line. */
    wave(peaks, from, to, middle, half) {
      const first = Math.max(0, Math.floor(from * data.peaks_per_s));
      const last = Math.min(peaks.length, Math.ceil(to * data.peaks_per_s));
      const every = Math.max(1, Math.floor(data.peaks_per_s / this.scale));
      const above = [];
      const below = [];
      for (let n = first; n < last; n += every) {
        let peak = 0;
        for (let m = n; m < Math.min(n + every, last); m += 1) peak = Math.max(peak, peaks[m]);
        const size = Math.max(0.6, (peak / 255) * half);
        const x = ((n / data.peaks_per_s) * this.scale).toFixed(1);
        above.push(`${x} ${(middle - size).toFixed(1)}`);
        below.push(`${x} ${(middle + size).toFixed(1)}`);
      }
      if (!above.length) return "";
      return `M${above.join("L")}L${below.reverse().join("L")}Z`;
    }
  }

  /* ---- the page */

  const views = new Map();

  function show(root) {
    const call = data.calls[root.dataset.call];
    if (!root.open || !call || views.has(root)) return;
    views.set(root, new CallView(root, call));
  }

  function reveal() {
    const root = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (root instanceof HTMLDetailsElement) root.open = true;
  }

  installTheme();
  for (const root of document.querySelectorAll("details.call")) {
    root.addEventListener("toggle", () => show(root));
    show(root);
  }
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    for (const [root, view] of views) if (root.open) view.zoomTo(view.zoom);
  });
  addEventListener("hashchange", reveal);
  reveal();
})();
