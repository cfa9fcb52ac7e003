// Pages work without this script. It shows times in the browser's time zone, keeps the parts of a page that are marked
// `data-live` up to date, selects all boxes of a table, and puts the cursor into the search with the key `/`.
"use strict";

const PERIOD = 3000; // between two looks, in milliseconds
const BOOT_PERIOD = 1000; // while the page shows the progress of a boot
const MAX_PERIOD = 60000; // while the central node does not answer
const COST_RATIO = 10; // a look takes at most a tenth of the time: a slow answer slows the looks down

function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) {
      element.title = element.dateTime;
      element.textContent = at.toLocaleString();
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

let known = null; // entity tag of what is shown
let period = PERIOD;

async function look() {
  const headers = known === null ? {} : { "If-None-Match": known };
  const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "follow" });
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
  const tag = answer.headers.get("ETag");
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  let isWhole = true;
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    if (next === null) {
      continue;
    }
    localTimes(next);
    if (next.innerHTML === part.innerHTML) {
      continue;
    }
    if (isInUse(part)) {
      isWhole = false;
      continue;
    }
    const output = part.querySelector(".output");
    const atEnd = output !== null && output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
    part.replaceChildren(...next.childNodes);
    if (atEnd) {
      showEnd(part);
    }
  }
  known = isWhole ? tag : null;
}

function showEnd(root) {
  for (const output of root.querySelectorAll(".output")) {
    output.scrollTop = output.scrollHeight;
  }
}

async function watch() {
  // A hidden tab asks nothing; it looks as soon as it is seen again.
  if (!document.hidden) {
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
  timer = setTimeout(watch, period);
}

let timer = 0;
localTimes(document);
showEnd(document);
if (document.querySelector("[data-live]") !== null) {
  timer = setTimeout(watch, PERIOD);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      clearTimeout(timer);
      watch();
    }
  });
}

for (const all of document.querySelectorAll("input[data-all]")) {
  all.addEventListener("change", () => {
    for (const box of all.form.querySelectorAll(`input[name="${CSS.escape(all.dataset.all)}"]`)) {
      box.checked = all.checked;
    }
  });
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const search = document.getElementById("q");
    if (search !== null) {
      event.preventDefault();
      search.focus();
    }
  }
});
