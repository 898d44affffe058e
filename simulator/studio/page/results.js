// What does the answer look like?

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const signed = (share) => `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;
const grouped = (value, digits = 0) => value.toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const FITS = { fits: "fits", tight: "tight", "probably does not fit": "probably does not fit", "does not fit": "does not fit" };

function dollars(usd) {
  const [name, factor] = [["MUSD", 1e6], ["kUSD", 1e3], ["USD", 1]].find(([, f]) => usd >= f) || ["USD", 1];
  return `${significant(usd / factor)} ${name}`;
}

function probability(share) {
  if (share > 0.995) return "over 99 %";
  return share < 0.005 ? "under 1 %" : percent(share, 0);
}

function showTiles(list, answer) {
  const fullest = answer.memory.rows.find((row) => row.is_fullest), { cost } = answer;
  const tiles = [
    ["Step time", answer.step, answer.band ? `80 % interval: ${answer.band[0]} to ${answer.band[1]}` : "no interval is known for several kinds of GPUs"],
    ["MFU", percent(answer.mfu), `${answer.model_tflops_per_gpu.toFixed(0)} TFLOP/s per GPU`],
    ["Tokens/s per GPU", grouped(answer.tokens_per_s_per_gpu), `${percent(answer.bubble_fraction)} pipeline bubble`],
    ["Fits into memory", probability(answer.fits_probability), `${FITS[answer.fit] || answer.fit}: ${fullest.need} of ${fullest.capacity}`, answer.fits ? "" : "no"],
    costTile(cost),
  ];
  list.replaceChildren(...tiles.map(([name, value, more, className]) => {
    const tile = element("div", undefined, className);
    tile.append(element("dt", name), element("dd", value, "value"), element("dd", more, "more"));
    return tile;
  }));
}

function costTile(cost) {
  if (!cost) return ["Training run", "unknown", "give the number of tokens to train on"];
  const hours = `${grouped(cost.gpu_hours)} GPU-hours`;
  if (cost.usd === null) return [`Training on ${cost.tokens} tokens`, cost.wall, `${hours}; no price is given`];
  return [`Training on ${cost.tokens} tokens`, dollars(cost.usd), `${cost.wall}, ${hours}`];
}

function paint(node, color) {
  node.style.setProperty("--c", `light-dark(${color[0]}, ${color[1]})`);
  return node;
}

function swatch(color, isWait) {
  return paint(element("i", undefined, isWait ? "swatch wait" : "swatch"), color);
}

// Parts side by side; a limit is a mark on the same scale.
function track(parts, limitShare) {
  const made = element("div", undefined, "track"), stack = element("span", undefined, "stack");
  for (const { name, color, share } of parts) {
    if (share <= 0) continue;
    const bar = paint(element("i", undefined, "bar"), color);
    bar.style.width = `${100 * share}%`;
    bar.title = name;
    stack.append(bar);
  }
  made.append(stack);
  if (limitShare !== undefined) {
    const mark = element("i", undefined, "mark");
    mark.style.left = `calc(${100 * limitShare}% - 1px)`;
    mark.title = "limit";
    made.append(mark);
  }
  return made;
}

function partList(parts) {
  const list = element("ul", undefined, "parts");
  for (const { name, color, text, share } of parts) {
    const line = element("li");
    line.append(swatch(color), element("span", name), element("b", text), element("i", percent(share)));
    list.append(line);
  }
  return list;
}

function showMemory(room, aside, { memory, fit, fits_probability: chance }) {
  const fullest = memory.rows.find((row) => row.is_fullest);
  aside.textContent = `${fullest.name}: ${fullest.need} of ${fullest.capacity}, ${FITS[fit] || fit} with a probability of ${probability(chance)}`;
  if (fit !== "fits") aside.textContent = `${fullest.name}: ${fullest.need} of ${fullest.capacity}; fits with a probability of ${probability(chance)}`;
  const partsOf = (row) => memory.owners.map((owner, k) => ({ ...owner, share: row.shares[k], text: owner.held }));
  const whole = fullest.shares.reduce((sum, share) => sum + share, 0);
  const parts = partsOf(fullest).filter((part) => part.share > 0.0005);
  const scale = element("p", undefined, "scale");
  scale.append(element("span", "0"), element("span", `limit ${fullest.capacity}`));
  if (fullest.limit_share < 0.999) scale.lastChild.textContent = `limit ${fullest.capacity}; needs ${fullest.need}`;
  const made = [track(parts, fullest.limit_share), scale, partList(parts.map((part) => ({ ...part, share: part.share / whole })))];
  if (memory.rows.length > 1) {
    const more = element("details", undefined, "small"), rows = element("div", undefined, "rows");
    more.append(element("summary", `All ${memory.rows.length} classes of ranks`), rows);
    for (const row of memory.rows) rows.append(element("span", row.name), track(partsOf(row), row.limit_share), element("span", row.need));
    more.open = Boolean(room.querySelector("details[open]"));
    made.push(more);
  }
  room.replaceChildren(...made);
}

function showBreakdown(room, rows) {
  const parts = rows.map((row) => ({ ...row, text: row.time }));
  room.replaceChildren(track(parts), partList(parts));
}

// The timeline of the page of one step, in a canvas of its own for every answer.
class Pipeline {
  constructor(room, legend, tooltip) {
    Object.assign(this, { room, legend, tooltip, timeline: null });
    const redraw = () => this.redraw();
    addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    const acts = { in: () => this.view.zoom(2), out: () => this.view.zoom(0.5), all: () => this.view.show(0, this.view.stepS) };
    for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => this.timeline && acts[button.dataset.do]());
  }

  show({ timeline, sources, legend }) {
    const scroller = element("div", undefined, "lanes"), canvas = element("canvas", undefined, "timeline");
    const spacer = element("div"), details = element("div");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", "Operations of every stage over time. Arrow keys move from operation to operation, + and - zoom.");
    details.id = "details";
    details.setAttribute("aria-live", "polite");
    scroller.append(canvas, spacer);
    this.room.style.minHeight = `${this.room.offsetHeight}px`; // the page keeps its place
    this.room.replaceChildren(scroller, details);
    this.view = new View(timeline.step_s);
    this.timeline = new Timeline(timeline, sources, this.view, { canvas, scroller, spacer, tooltip: this.tooltip, details });
    this.timeline.showStreams(timeline.lanes.map((lane) => lane.stream).filter((name) => !name.startsWith("recv_")));
    showDetails(details, null, this.timeline);
    this.redraw();
    this.room.style.minHeight = "";
    this.tooltip.hidden = true;
    this.legend.replaceChildren(...legend.map((entry) => {
      const line = element("li");
      line.append(swatch(entry.color, entry.wait), ` ${entry.name}`);
      return line;
    }));
  }

  redraw() {
    if (!this.timeline) return;
    this.timeline.layOut();
    this.timeline.surface.now();
  }
}

// Changes that a search found, each with a button that makes it.
function showChanges(room, found, onApply) {
  const made = [];
  if (found.said) made.push(element("p", found.said, "hint"));
  if (found.changes.length) {
    const table = element("table", undefined, "changes"), head = table.createTHead().insertRow(), body = table.createTBody();
    for (const [name, className] of [["change", ""], ["tokens/s", "number"], ["step", "number"], ["fullest GPU", "number"], ["fits", "number"], ["", ""]]) head.append(element("th", name, className));
    for (const change of found.changes) {
      const row = body.insertRow(), name = element("th", change.words);
      name.scope = "row";
      if (!change.keeps_learning) name.append(" ", element("span", "changes what is learned", "tag"));
      row.append(name);
      for (const text of [signed(change.gain), change.step, change.memory]) row.insertCell().append(element("span", text, "number"));
      for (const cell of row.cells) if (cell.tagName === "TD") cell.className = "number";
      const fits = row.insertCell();
      fits.className = "number";
      fits.append(element("span", probability(change.fits_probability), change.fits ? "tag" : "tag no"));
      const act = row.insertCell(), button = element("button", "Apply");
      act.className = "act";
      button.type = "button";
      button.setAttribute("aria-label", `Apply: ${change.words}`);
      button.addEventListener("click", () => onApply(change.fields));
      act.append(button);
    }
    made.push(table);
  }
  made.push(element("p", `${found.tried} changes were simulated, without contention.`, "hint"));
  room.replaceChildren(...made);
}

const ROWS = [
  ["step time", (a) => a.step, (a) => -a.step_time_s],
  ["80 % prediction interval", (a) => (a.band ? a.band.join(" to ") : "unknown")],
  ["tokens/s per GPU", (a) => grouped(a.tokens_per_s_per_gpu), (a) => a.tokens_per_s_per_gpu],
  ["MFU", (a) => percent(a.mfu), (a) => a.mfu],
  ["pipeline bubble", (a) => percent(a.bubble_fraction)],
  ["fullest GPU", (a) => a.memory.rows.find((row) => row.is_fullest).need],
  ["fits with a probability of", (a) => probability(a.fits_probability)],
  ["training run", (a) => (a.cost ? a.cost.wall : "unknown")],
  ["GPU-hours", (a) => (a.cost ? grouped(a.cost.gpu_hours) : "open"), (a) => (a.cost ? -a.cost.gpu_hours : NaN)],
  ["cost", (a) => (a.cost && a.cost.usd !== null ? dollars(a.cost.usd) : "no price"), (a) => (a.cost && a.cost.usd !== null ? -a.cost.usd : NaN)],
];

// Variants as columns, the present one first; of rows with a best value, the best that fits is marked.
function showVariants(room, now, pins, onUse, onRemove) {
  if (!pins.length) {
    room.replaceChildren(element("p", "Pin this variant and change something to compare both here.", "hint"));
    return;
  }
  const all = [now, ...pins], table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  head.append(element("td"));
  all.forEach((variant, number) => {
    const cell = element("th", number ? `Variant ${number}` : "Now");
    cell.scope = "col";
    if (number) {
      const acts = element("div", undefined, "acts");
      for (const [name, act] of [["Use", onUse], ["Remove", onRemove]]) {
        const button = element("button", name);
        button.type = "button";
        button.setAttribute("aria-label", `${name} variant ${number}`);
        button.addEventListener("click", () => act(number - 1));
        acts.append(button);
      }
      cell.append(acts);
    }
    head.append(cell);
  });
  const differs = body.insertRow(), name = element("th", "differs in");
  name.scope = "row";
  differs.append(name);
  for (const variant of all) {
    const words = variant === now ? "" : differences(now.values, variant.values) || "nothing";
    differs.insertCell().append(element("div", words, "changed"));
  }
  for (const [label, text, worth] of ROWS) {
    const row = body.insertRow(), title = element("th", label);
    title.scope = "row";
    row.append(title);
    const values = all.map(({ answer }) => (worth && answer && answer.fits ? worth(answer) : NaN));
    const best = Math.max(...values.filter((value) => !Number.isNaN(value)));
    all.forEach(({ answer }, number) => {
      const isBest = values[number] === best && values.some((value) => value < best);
      row.append(element("td", answer ? text(answer) : "cannot run", isBest ? "best" : ""));
    });
  }
  room.replaceChildren(table);
}

function differences(first, second) {
  const words = (value) => (value === undefined ? "default" : typeof value === "object" ? value.name || JSON.stringify(value) : String(value));
  const paths = [...new Set([...Object.keys(first), ...Object.keys(second)])];
  return paths.filter((path) => JSON.stringify(first[path]) !== JSON.stringify(second[path]))
    .map((path) => `${path.replace(/^(plan|batch|cluster|campaign)\./, "")} ${words(second[path])}`).join(", ");
}
