// Elements without markup: whatever comes from an answer, a model's name or an error reaches the page as text only.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element; `on…` attributes are listeners, children are nodes or texts. */
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** Sets a text only where it changes, so that live regions speak once and a selection survives. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  node.hidden = !visible;
}

/**
 * Makes the children of `parent` those of `items`, in order. Elements are kept by their key, and only moved where the
 * order changed, so that focus and scroll positions survive a poll.
 */
export function keyed(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = keyOf(item);
    let node = known.get(key);
    if (!node) {
      node = create(item);
      node.dataset.key = key;
    }
    known.delete(key);
    update(node, item);
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
  });
  for (const node of known.values()) node.remove();
}

/** The value that is checked of a group of radio buttons, kept for the next visit where the browser lets us. */
export function choice(fieldset, changed) {
  const name = `reprise.${fieldset.id}`;
  const inputs = [...fieldset.querySelectorAll("input")];
  const kept = inputs.find((input) => input.value === recall(name));
  if (kept) kept.checked = true;
  fieldset.addEventListener("change", () => {
    remember(name, current());
    changed();
  });
  const current = () => inputs.find((input) => input.checked).value;
  return current;
}

function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }
}
