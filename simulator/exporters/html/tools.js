// What do all pages with a timeline have in common? Buttons, and when to draw anew.

function startPage(view, timelines, surfaces) {
  const acts = {
    in: () => view.zoom(2),
    out: () => view.zoom(0.5),
    left: () => view.pan(-0.3),
    right: () => view.pan(0.3),
    all: () => view.show(0, view.stepS),
  };
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", acts[button.dataset.do]);
  }
  const redraw = () => {
    for (const timeline of timelines) timeline.layOut();
    for (const surface of surfaces) surface.now();
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
  redraw();
}
