/** Helpers for all views: find elements of the page, and make new ones. */

/**
 * Return the element with an id; a page without it is a bug.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function part(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${id}`);
  return found;
}

/**
 * Make an element.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {{ className?: string, text?: string, data?: { [key: string]: string } }} [what]
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function make(name, { className = "", text = "", data = {} } = {}) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  Object.assign(made.dataset, data);
  return made;
}
