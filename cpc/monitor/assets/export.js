// Draws the charts of an exported page; the page itself does not load this.
const config = JSON.parse(document.getElementById("graph-config").textContent);
const plots = [...document.querySelectorAll(".plot")];
function draw(plot) {
  const figure = JSON.parse(document.getElementById(plot.id + "-figure").textContent);
  Plotly.newPlot(plot, figure.data, figure.layout, config);
  // One zoom for all charts of training steps.
  plot.on("plotly_relayout", (change) => {
    if (plot.isFollowing) return;
    const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
    if (low === undefined && !change["xaxis.autorange"]) return;
    const same = low === undefined ? { "xaxis.autorange": true } : { "xaxis.range": [low, high] };
    for (const other of plots.filter((each) => each !== plot && each.data && !each.layout.xaxis.fixedrange)) {
      other.isFollowing = true;
      Plotly.relayout(other, same).then(() => { other.isFollowing = false; });
    }
  });
}
// Hundreds of charts at once would be slow: the charts of a run are plotted when its section is opened.
function drawOpen() {
  plots.filter((plot) => !plot.data && !plot.closest("details:not([open])")).forEach(draw);
}
drawOpen();
document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", drawOpen));
