// Pages work without this script. It shows how long ago a time was, keeps the navigation and the parts of a page that are
// marked `data-live` up to date (the server sends those that changed), selects all boxes of a table, and handles the keys that the dialog `keys` lists.
"use strict";

const PERIOD = 3000; // between two looks, in milliseconds
const BOOT_PERIOD = 1000; // while the page shows the progress of a boot
const MAX_PERIOD = 60000; // while the central node does not answer
const LOOK_TIME = 60000; // for an answer, in milliseconds: a connection may have died in a sleep
const COST_RATIO = 10; // a look takes at most a tenth of the time: a slow answer slows the looks down

const TIME_PERIOD = 10000; // between two updates of relative times, in milliseconds
const GO_TIME = 1500; // for the letter after the key `g`, in milliseconds
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

// The one format of times: `12 s ago`, `3 min ago`, `2 h ago`, `4 d ago`, or `in 4 d`.
function relative(at) {
  const seconds = Math.round((Date.now() - at.getTime()) / 1000);
  const [size, unit] = UNITS.find(([size]) => Math.abs(seconds) >= size) || [1, "s"];
  const count = Math.floor(Math.abs(seconds) / size);
  return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
}

// New text would end a selection.
function isSelected(element) {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && selection.containsNode(element, true);
}

function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) {
      const text = relative(at);
      if (element.textContent !== text && !isSelected(element)) {
        element.title = `${at.toLocaleString()} (${element.dateTime})`;
        element.textContent = text;
      }
    }
  }
  // An option may contain no element.
  for (const option of root.querySelectorAll("option[data-time]")) {
    const at = new Date(option.dataset.time);
    if (!Number.isNaN(at.getTime())) {
      option.textContent = option.textContent.replace(option.dataset.time, at.toLocaleString());
    }
  }
}

// A part that somebody works in stays as it is: a ticked box, a pressed button, a field with the cursor, text that is selected.
function isInUse(part) {
  const selection = document.getSelection();
  return part.querySelector("input:checked, details[open], :active") !== null
    || part.contains(document.activeElement)
    || (selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode));
}

let known = document.body.dataset.tag ?? null; // entity tag of what the server sent
const sources = new WeakMap(); // live parts as the server sent them, before their times became relative
const held = new Map(); // new content of parts in use, by their IDs

function liveParts() {
  return document.querySelectorAll("[data-live], #nav");
}
let period = PERIOD;

// Gives a part its new content, or keeps the content until nobody uses the part.
function update(part, next) {
  const source = next.innerHTML;
  held.delete(part.id);
  if (source === sources.get(part)) {
    return;
  }
  if (isInUse(part)) {
    held.set(part.id, next.cloneNode(true)); // a part within it may take its own nodes
    return;
  }
  const output = part.querySelector(".output");
  const atEnd = output !== null && output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
  localTimes(next);
  part.replaceChildren(...next.childNodes);
  sources.set(part, source);
  if (atEnd) {
    showEnd(part);
  }
}

function updateHeld() {
  for (const [id, next] of [...held]) {
    const part = document.getElementById(id);
    if (part !== null) {
      update(part, next);
    }
  }
}

async function look() {
  const headers = known === null ? {} : { "If-None-Match": known };
  const signal = AbortSignal.timeout(LOOK_TIME);
  const answer = await fetch(location.href, { headers, signal, cache: "no-store", redirect: "follow" });
  if (answer.redirected) {
    location.reload(); // signed out
    return;
  }
  if (answer.status === 304) {
    return;
  }
  if (!answer.ok) {
    throw new Error(String(answer.status));
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of liveParts()) {
    const next = fresh.getElementById(part.id);
    if (next !== null) {
      update(part, next);
    }
  }
  known = answer.headers.get("ETag");
}

function showEnd(root) {
  for (const output of root.querySelectorAll(".output")) {
    output.scrollTop = output.scrollHeight;
  }
}

let isLooking = false;

async function watch() {
  if (isLooking) {
    return; // a tab that is shown again asks once
  }
  isLooking = true;
  // A hidden tab asks nothing; it looks as soon as it is seen again.
  if (!document.hidden) {
    updateHeld();
    try {
      const began = performance.now();
      await look();
      const cost = performance.now() - began;
      const base = document.querySelector("progress.boot") === null ? PERIOD : BOOT_PERIOD;
      period = Math.min(Math.max(base, cost * COST_RATIO), MAX_PERIOD);
      document.body.classList.remove("stale");
    } catch (error) {
      period = Math.min(period * 2, MAX_PERIOD);
      document.body.classList.add("stale");
    }
  }
  isLooking = false;
  timer = setTimeout(watch, period);
}

let timer = 0;
for (const part of liveParts()) {
  sources.set(part, part.innerHTML);
}
localTimes(document);
setInterval(() => localTimes(document), TIME_PERIOD);
showEnd(document);
const here = document.querySelector("#nav a[aria-current]");
if (here !== null) {
  const nav = document.getElementById("nav");
  nav.scrollLeft = here.offsetLeft - nav.clientWidth / 2; // of the line on a narrow screen
}
if (document.querySelector("[data-live]") !== null) {
  timer = setTimeout(watch, PERIOD);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      clearTimeout(timer);
      watch();
    }
  });
}

// At the document: a table with such a box may replace an empty list.
document.addEventListener("change", ({ target: all }) => {
  if (all.matches("input[data-all]")) {
    for (const box of all.form.querySelectorAll(`input[name="${CSS.escape(all.dataset.all)}"]`)) {
      box.checked = all.checked;
    }
  }
});

const keys = document.getElementById("keys");
let goUntil = 0; // a letter opens a page until then

// Fields and consoles take all keys.
function isTyping(target) {
  return target instanceof HTMLElement && target.closest("input, select, textarea, #terminal") !== null;
}

function press(key) {
  const isGoing = performance.now() < goUntil;
  goUntil = 0;
  if (isGoing) {
    const page = document.querySelector(`#nav a[data-key="${CSS.escape(key)}"]`);
    if (page !== null) {
      location.assign(page.href);
      return true;
    }
  }
  if (key === "g") {
    goUntil = performance.now() + GO_TIME;
  } else if (key === "?" && keys !== null) {
    keys.open ? keys.close() : keys.showModal();
    return true;
  } else if (key === "/") {
    const search = document.getElementById("q");
    if (search !== null) {
      keys?.close();
      search.focus();
      search.select();
      return true;
    }
  }
  return false;
}

document.addEventListener("keydown", (event) => {
  if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) {
    return;
  }
  if (press(event.key)) {
    event.preventDefault();
  }
});

document.querySelector("button[data-keys]")?.addEventListener("click", () => keys.showModal());
