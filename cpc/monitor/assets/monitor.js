// What the page decides by itself: the theme of the system, one zoom for all charts, and where the keyboard is.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.monitor = {
  // The training steps in view after a zoom in any chart; null once a double click shows everything again.
  zoom: function (relayouts, scale) {
    const context = window.dash_clientside.callback_context;
    const keep = window.dash_clientside.no_update;
    const data = (value) => (scale && scale.length ? Math.pow(10, value) : value);
    for (const each of context.triggered) {
      const change = each.value || {};
      if (change["xaxis.autorange"]) return null;
      const low = "xaxis.range" in change ? change["xaxis.range"][0] : change["xaxis.range[0]"];
      const high = "xaxis.range" in change ? change["xaxis.range"][1] : change["xaxis.range[1]"];
      if (low !== undefined && high !== undefined) return [data(low), data(high)];
    }
    return keep;
  },
  theme: function (choice) {
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const theme = choice === "system" ? system : choice;
    document.documentElement.dataset.theme = theme;
    return theme;
  },
};

// The table of runs is drawn anew with every record: whoever has reached a button there by keyboard stays on it.
(function () {
  let reached = null;
  document.addEventListener("focusin", (event) => {
    reached = event.target.closest("#runs") && event.target.id;
  });
  new MutationObserver(() => {
    if (!reached || document.activeElement !== document.body) return;
    const again = document.getElementById(reached);
    if (again) again.focus({ preventScroll: true });
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
