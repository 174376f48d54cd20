// Callbacks that run in the browser: the theme of the system, one zoom for all charts, the charts on the screen, and
// whether the server answers.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.monitor = {
  // Return the range of training steps after a zoom in any chart; null after a double click, which shows all steps.
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
  // Return the names of the charts on the screen, or at most half a screen away.
  inView: function (_, known) {
    const isNear = ({ top, bottom }) => bottom > -0.5 * window.innerHeight && top < 1.5 * window.innerHeight;
    const sections = [...document.querySelectorAll(".chart")];
    const names = sections.filter((each) => isNear(each.getBoundingClientRect())).map((each) => each.id.replace("section-", ""));
    return String(names) === String(known) ? window.dash_clientside.no_update : names;
  },
  // Reset the zoom of every chart, like a double click in each; an empty chart cannot be clicked on.
  showAllSteps: function () {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) {
      window.Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
    }
  },
  answered: function (time) {
    if (time) window.cpcMonitorAnswered = Date.now();
  },
  theme: function (choice) {
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const theme = choice === "system" ? system : choice;
    document.documentElement.dataset.theme = theme;
    return theme;
  },
};

// Without an alarm, a page whose server has stopped would look like a page of runs without new records.
(function () {
  const PATIENCE = 5000; // milliseconds
  const alarm = document.createElement("p");
  alarm.className = "alarm";
  alarm.setAttribute("role", "alert");
  let visibleSince = Date.now();
  document.addEventListener("visibilitychange", () => {
    visibleSince = Date.now(); // a browser suspends hidden pages
  });
  let lookedAt = Date.now();
  setInterval(() => {
    if (Date.now() - lookedAt > 2000) visibleSince = Date.now(); // the page was busy or suspended
    lookedAt = Date.now();
    const last = window.cpcMonitorAnswered;
    const isSilent = Boolean(last) && Date.now() - Math.max(last, visibleSince) > PATIENCE;
    if (isSilent === alarm.isConnected) return;
    document.documentElement.toggleAttribute("data-silent", isSilent);
    if (!isSilent) return alarm.remove();
    alarm.textContent =
      `No answer from cpc monitor since ${new Date(last).toLocaleTimeString()}: it has ended, cannot be reached, or needs ` +
      "another token. This page shows the state at that time.";
    document.body.prepend(alarm);
  }, 1000);
})();
