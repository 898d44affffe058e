// The page: what is chosen is asked, what is answered is shown, and the link says both.

async function startStudio() {
  const get = (id) => document.getElementById(id);
  const page = await ask("page");
  if (page.faults) {
    get("title").textContent = "The studio cannot be used";
    showFaults(page.faults);
    return;
  }
  const linked = valuesOf(location.search);
  const state = new State(Object.keys(linked).length ? linked : page.start);
  const pins = new URLSearchParams(location.search).getAll("pin").map((query) => ({ values: valuesOf(query), answer: null }));
  const panel = new Panel(get("panel"), page.controls, change);
  const pipeline = new Pipeline(get("pipeline"), get("legend"), get("tooltip"));
  // For tests: how often was asked, what was answered last, and how long it took [ms].
  const studio = (window.studio = { asked: 0, shown: 0, took: [], answer: null, state, form: page.forms[0] });
  let underWay = null;
  let searched = null; // the job that the advice on the page is for

  function change(fields) {
    state.set(fields);
    refresh();
  }

  function refresh() {
    panel.show(state.values);
    get("undo").disabled = !state.past.length;
    const query = new URLSearchParams(queryOf(state.values));
    for (const pin of pins) query.append("pin", queryOf(pin.values));
    if (token) query.append("token", token);
    history.replaceState(null, "", `?${query}`);
    if (searched !== null && searched !== queryOf(state.values)) advise("The job has changed; press the button again.");
    studio.asked += 1;
    studio.since = performance.now();
    answer();
  }

  // One question at a time, always the newest; one that takes long is given up for a newer one.
  async function answer() {
    if (underWay && performance.now() - underWay.at < 400) {
      clearTimeout(underWay.retry);
      underWay.retry = setTimeout(() => { if (studio.shown < studio.asked) answer(); }, 400);
      return;
    }
    const mine = (underWay = { at: performance.now(), number: studio.asked });
    const found = await ask("step", { state: state.values });
    if (underWay !== mine) return;
    clearTimeout(mine.retry);
    underWay = null;
    if (found) show(found, mine.number);
    if (mine.number < studio.asked) answer();
  }

  function show(found, number) {
    const others = panel.blame(found.faults || []);
    document.body.dataset.state = found.faults ? "invalid" : "ready";
    studio.faults = found.faults || [];
    showFaults(found.faults ? found.faults : [], others);
    if (!found.faults) {
      studio.answer = found;
      get("title").textContent = found.title;
      get("verdict").textContent = found.verdict;
      get("said").textContent = `Step ${found.step}, MFU ${percent(found.mfu)}, ${found.fit}`;
      document.title = `${found.step} · ${found.title} · clustersim studio`;
      showTiles(get("tiles"), found);
      showMemory(get("held"), get("memory-verdict"), found);
      showBreakdown(get("breakdown"), found.breakdown);
      pipeline.show(found);
    }
    get("brief").textContent = found.faults
      ? "this job cannot run"
      : `${found.step} · MFU ${percent(found.mfu)} · fits with ${probability(found.fits_probability)}`;
    get("pin").disabled = Boolean(found.faults);
    compare();
    copies();
    studio.shown = number;
    if (number === studio.asked) studio.took.push(performance.now() - studio.since);
  }

  function showFaults(faults, others = faults) {
    const box = get("faults");
    box.hidden = !faults.length;
    if (!faults.length) { box.replaceChildren(); return; }
    const list = element("ul");
    for (const fault of faults) list.append(element("li", fault.text));
    const back = element("button", "Undo the last change");
    back.type = "button";
    back.addEventListener("click", undo);
    const head = others.length === faults.length ? "This job cannot run:" : "This job cannot run; the results below are of the last job that can:";
    box.replaceChildren(element("p", head), list, back);
  }

  function undo() {
    state.undo();
    refresh();
  }

  function compare() {
    const now = { values: state.values, answer: studio.faults.length ? null : studio.answer };
    showVariants(get("variants"), now, pins, use, (number) => { pins.splice(number, 1); refresh(); });
  }

  function use(number) {
    state.past.push({ values: state.values, moved: "", at: 0 });
    state.values = { ...pins[number].values };
    refresh();
  }

  async function copies() {
    const { form } = studio;
    const found = await ask("copy", { state: state.values, form });
    if (!found || form !== studio.form) return;
    get("copied").textContent = found.text ?? found.faults.map((fault) => fault.text).join("\n");
    get("copy").disabled = !found.text;
  }

  function advise(words) {
    searched = null;
    get("better").replaceChildren(element("p", words, "hint"));
  }

  async function search(name, button) {
    const better = get("better"), wanted = queryOf(state.values);
    button.disabled = true;
    better.setAttribute("aria-busy", "true");
    advise("Simulating changes …");
    const found = await ask(name, { state: state.values });
    button.disabled = false;
    better.removeAttribute("aria-busy");
    if (!found) return;
    if (wanted !== queryOf(state.values)) {
      advise("The job has changed; press the button again.");
      return;
    }
    searched = wanted;
    if (found.faults) better.replaceChildren(...found.faults.map((fault) => element("p", fault.text, "fault")));
    else showChanges(better, found, (fields) => {
      advise("Applied; Undo takes it back.");
      change(Object.fromEntries(Object.entries(fields).map(([path, value]) => [path, value === null ? undefined : value])));
    });
  }

  async function copy(text, button) {
    const name = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copy it from the address bar";
      if (button.id === "copy") button.textContent = "Select it and copy";
    }
    setTimeout(() => { button.textContent = name; }, 1500);
  }

  const forms = switchOf(page.forms, "form", (form) => { studio.form = form; copies(); });
  get("forms").replaceChildren(...forms.childNodes);
  get("forms").querySelector("input").checked = true;
  get("undo").addEventListener("click", undo);
  get("link").addEventListener("click", () => copy(location.href, get("link")));
  get("copy").addEventListener("click", () => copy(get("copied").textContent, get("copy")));
  get("fit").addEventListener("click", () => search("fit", get("fit")));
  get("faster").addEventListener("click", () => search("faster", get("faster")));
  get("pin").addEventListener("click", () => {
    pins.push({ values: { ...state.values }, answer: studio.answer });
    refresh();
  });
  refresh();
  for (const [number, pin] of pins.entries()) {
    const found = await ask("step", { state: pin.values, timeline: false }, `pin${number}`);
    pin.answer = found && !found.faults ? found : null;
  }
  if (pins.length && studio.shown) compare();
}

startStudio();
