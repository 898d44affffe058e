// The page of several steps: their timelines under one another, on one axis.

{
  const { runs } = JSON.parse(document.getElementById("data").textContent);
  const view = new View(Math.max(...runs.map((run) => run.timeline.step_s)));
  const canvases = document.querySelectorAll("canvas.timeline");
  const timelines = runs.map((run, index) => {
    const canvas = canvases[index];
    const timeline = new Timeline(run.timeline, run.sources, view, {
      canvas,
      scroller: canvas.parentElement,
      spacer: canvas.nextElementSibling,
      tooltip: document.getElementById("tooltip"),
      details: document.getElementById("details"),
    });
    timeline.showStreams([...timeline.shown].filter((stream) => !stream.startsWith("recv")));
    return timeline;
  });
  startPage(view, timelines, timelines.map((timeline) => timeline.surface));
  // For whoever scripts the page.
  window.clustersim = { view, timelines };
}
