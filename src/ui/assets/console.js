// The console of a VM, or the shell of a node: shows the next screen as soon as there is one, and posts what is typed.
"use strict";

const terminal = document.getElementById("terminal");
const state = document.getElementById("terminal-state");
const hint = state.textContent;
const RETRY = 3000; // after an error, in milliseconds

const KEYS = {
  Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", Delete: "\x1b[3~", Insert: "\x1b[2~",
  ArrowUp: "\x1b[A", ArrowDown: "\x1b[B", ArrowRight: "\x1b[C", ArrowLeft: "\x1b[D",
  Home: "\x1b[H", End: "\x1b[F", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
  F1: "\x1bOP", F2: "\x1bOQ", F3: "\x1bOR", F4: "\x1bOS", F5: "\x1b[15~", F6: "\x1b[17~",
  F7: "\x1b[18~", F8: "\x1b[19~", F9: "\x1b[20~", F10: "\x1b[21~", F11: "\x1b[23~", F12: "\x1b[24~",
};

// The bytes of a key, or null for a key that belongs to the browser.
function bytesOf(event) {
  if (event.metaKey || (event.key === "Tab" && event.shiftKey)) {
    return null;
  }
  if (event.ctrlKey) {
    const code = event.key.toUpperCase().charCodeAt(0);
    const isControl = event.key.length === 1 && code >= 0x40 && code < 0x60 && !event.shiftKey;
    return isControl ? String.fromCharCode(code - 0x40) : null;
  }
  const text = KEYS[event.key] ?? (event.key.length === 1 ? event.key : null);
  return text !== null && event.altKey ? `\x1b${text}` : text;
}

let waiting = "";
let isSending = false;

// One request at a time: the bytes arrive in order.
async function type(text) {
  waiting += text;
  if (isSending) {
    return;
  }
  isSending = true;
  while (waiting !== "") {
    const body = waiting;
    waiting = "";
    try {
      const answer = await fetch(`${terminal.dataset.console}/input`, { method: "POST", body });
      if (!answer.ok) {
        throw new Error(String(answer.status));
      }
    } catch (error) {
      waiting = "";
      state.textContent = "What was typed last did not arrive. Does it run?";
    }
  }
  isSending = false;
}

terminal.addEventListener("keydown", (event) => {
  const bytes = bytesOf(event);
  if (bytes !== null) {
    event.preventDefault();
    type(bytes);
  }
});

terminal.addEventListener("paste", (event) => {
  event.preventDefault();
  type(event.clipboardData.getData("text").replace(/\r?\n/g, "\r"));
});

function isShown() {
  return document.hidden
    ? new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }))
    : Promise.resolve();
}

async function follow() {
  for (;;) {
    await isShown();
    try {
      const answer = await fetch(`${terminal.dataset.console}/screen?after=${terminal.dataset.screen}`);
      if (answer.status === 410 && terminal.dataset.console.endsWith("/shell")) {
        state.textContent = "The shell ended. Load the page for a button that opens another one.";
        return;
      }
      if (answer.redirected || answer.status === 410) {
        location.reload(); // signed out, or meshd was restarted
        return;
      }
      if (answer.status === 200) {
        const fresh = new DOMParser().parseFromString(`<pre>\n${await answer.text()}</pre>`, "text/html");
        terminal.replaceChildren(...fresh.body.firstChild.childNodes);
        terminal.dataset.screen = answer.headers.get("X-Screen");
        const ended = answer.headers.get("X-Ended");
        if (ended) {
          state.textContent = `The console ended: ${ended}. Load the page to open it again.`;
          return;
        }
      } else if (answer.status !== 204) {
        throw new Error(String(answer.status));
      }
      document.body.classList.remove("stale");
    } catch (error) {
      document.body.classList.add("stale");
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }
}

terminal.addEventListener("focus", () => { state.textContent = hint; });
terminal.focus();
follow();
