// The page of one step: its timeline, its memory, and which streams are shown.

{
  const get = (id) => document.getElementById(id);
  const data = JSON.parse(get("data").textContent);
  const view = new View(data.timeline.step_s);
  const timeline = new Timeline(data.timeline, data.sources, view, {
    canvas: get("timeline"), scroller: get("lanes"), spacer: get("lanes-height"), tooltip: get("tooltip"), details: get("details"),
  });
  const memory = new MemoryPicture(data.memory, view, { canvas: get("memory"), select: get("memory-class"), now: get("memory-now") });
  const chooseStreams = () => {
    timeline.showStreams([...document.querySelectorAll("#streams input:checked")].map((box) => box.value));
  };
  get("streams").addEventListener("change", chooseStreams);
  chooseStreams();
  startPage(view, [timeline], [timeline.surface, memory.surface]);
  // For whoever scripts the page.
  window.clustersim = { view, timeline, memory };
}
