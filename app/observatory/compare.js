// Two texts: what they share, and what each says from where they part. Nothing here touches the page.

const LONGEST_MARK = 24;
const SEPARATOR = "\u001e";

/**
 * The choices of an output as its texts were kept, null where the ledger keeps none. Each is `text`, all that is readable
 * of it in the order in which it was generated, and `parts`, the names of what it is made of.
 */
export function textsOf(output) {
  if (output?.text === null || output?.text === undefined) return null;
  try {
    const choices = JSON.parse(output.text);
    return Array.isArray(choices) ? choices.map(choiceOf) : null;
  } catch {
    return null;
  }
}

/** A choice is its text alone, or its parts by name. Throws for anything else. */
function choiceOf(kept) {
  const { reasoning, text, refusal, tool_calls: calls = [] } = typeof kept === "string" ? { text: kept } : kept;
  const parts = [
    ["reasoning", reasoning], ["text", text], ["refusal", refusal],
    ...calls.map(([name, said]) => ["tool call", `${name}${SEPARATOR}${said}`]),
  ].filter(([, said]) => said);
  if (!parts.every(([, said]) => typeof said === "string")) throw new TypeError("a part that is no text");
  return { text: parts.map(([, said]) => said).join(SEPARATOR), parts: parts.map(([name]) => name) };
}

/**
 * The fork of two texts, counted in characters as the gateway counts them (code points). Each side is `mark`, the rest of
 * the word in which they part, and `rest`; a side that ends at the fork has an empty mark.
 */
export function forkOf(left, right) {
  const [a, b] = [Array.from(left), Array.from(right)];
  let at = 0;
  while (at < a.length && at < b.length && a[at] === b[at]) at += 1;
  return { at, equal: at === a.length && at === b.length, shared: a.slice(0, at), left: sideOf(a, at), right: sideOf(b, at) };
}

function sideOf(text, at) {
  let end = at;
  while (end < text.length && end - at < LONGEST_MARK && (end === at || /[\p{L}\p{N}\p{M}_]/u.test(text[end]))) {
    // White space goes with the word after it, as in most tokenizers.
    end += 1;
    if (end - at === 1 && text[at] !== " " && !/[\p{L}\p{N}\p{M}_]/u.test(text[at])) break;
  }
  return { mark: text.slice(at, end).join(""), rest: text.slice(end) };
}

/** A text whose every character can be seen: controls and marks of direction, which could feign another text, by name. */
export function visible(text) {
  return text
    .replaceAll(SEPARATOR, "\n␞\n")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (sign) => (sign === "\u007f" ? "␡" : String.fromCharCode(0x2400 + sign.charCodeAt(0))))
    .replace(/[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (sign) => `⟨U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** As `visible`, for the few characters of a mark, whose white space is what must be seen. */
export function visibleMark(mark) {
  if (mark === "") return "∎ ends here";
  return visible(mark).replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}
