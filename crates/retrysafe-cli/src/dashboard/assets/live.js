// Keeps the numbers of a page up to date. A page is whole without it.
"use strict";
(() => {
  const live = document.querySelector("[data-live]");
  if (!live || !window.EventSource) return;
  const shown = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const loaded = Date.now();
  // A browser has few connections to one host: a page that nobody sees holds none.
  let source = null;
  const watch = () => {
    if (document.hidden && source) source = source.close() ?? null;
    if (!document.hidden && !source) {
      source = new EventSource(live.dataset.live);
      source.onmessage = show;
    }
  };
  const show = (message) => {
    const now = { at: Date.now(), numbers: JSON.parse(message.data) };
    for (const place of document.querySelectorAll("[data-number]")) {
      const value = now.numbers[place.dataset.number];
      if (typeof value === "number") place.textContent = shown.format(value).replaceAll(",", "\u202f");
    }
    for (const place of document.querySelectorAll("[data-rate]")) {
      const rate = now.numbers.rates[place.dataset.rate];
      place.textContent = typeof rate === "number" ? rate.toFixed(1) : "";
    }
    // A board whose number has changed is loaded again, twice a minute at most, unless somebody is writing in a form.
    const watched = live.dataset.reload;
    const isWriting = document.activeElement && document.activeElement.matches("input, textarea, select");
    const isDue = now.at - loaded > 30000;
    if (watched && Number(live.dataset.value) !== now.numbers[watched] && isDue && !isWriting) location.reload();
  };
  document.addEventListener("visibilitychange", watch);
  watch();
})();
