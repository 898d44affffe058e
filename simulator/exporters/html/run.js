// The page of one step: the pictures, their tools, and when they are drawn anew.

{
  const get = (id) => document.getElementById(id);
  const data = JSON.parse(get("data").textContent);
  const view = new View(data.timeline.step_s);
  const timeline = new Timeline(data.timeline, data.sources, view, {
    canvas: get("timeline"), scroller: get("lanes"), spacer: get("lanes-height"), tooltip: get("tooltip"), details: get("details"),
  });
  const memory = new MemoryPicture(data.memory, view, { canvas: get("memory"), select: get("memory-class"), now: get("memory-now") });
  const pictures = [timeline.surface, memory.surface];

  const chooseStreams = () => {
    timeline.showStreams([...document.querySelectorAll("#streams input:checked")].map((box) => box.value));
  };
  get("streams").addEventListener("change", chooseStreams);
  const acts = {
    in: () => view.zoom(2), out: () => view.zoom(0.5), left: () => view.pan(-0.3), right: () => view.pan(0.3), all: () => view.show(0, view.stepS),
  };
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", acts[button.dataset.do]);

  const redraw = () => {
    timeline.layOut();
    for (const picture of pictures) picture.now();
  };
  const print = (is) => {
    isPrinting = is;
    for (const more of document.querySelectorAll("details")) more.open = is || more.open;
    redraw();
  };
  addEventListener("resize", redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  chooseStreams();
  redraw();
  // For whoever scripts the page.
  window.clustersim = { view, timeline, memory };
}
