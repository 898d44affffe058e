// What is one operation made of, and which numbers does it rest on?

function describe({ lane, row }, timeline) {
  const sheet = timeline.sheets[lane.sheet[row]];
  const owner = timeline.classes[lane.rankClass];
  const span = lane.end[row] - lane.start[row];
  const microbatch = lane.microbatch[row];
  const lines = [
    ["where", `${owner.name}${owner.ranks > 1 ? ` (${owner.ranks} ranks of the class)` : ""}, ${lane.stream.replaceAll("_", " ")}`],
    ["when", `${seconds(lane.start[row])} to ${seconds(lane.end[row])}`],
    ["takes", seconds(span)],
  ];
  const title = microbatch >= 0 ? `${sheet.name} of microbatch ${microbatch}` : sheet.name;
  if (!("alone_s" in sheet)) return { title, lines, parts: [], sources: [] };
  if (sheet.alone_s && Math.abs(span / sheet.alone_s - 1) > 0.001) {
    const more = 100 * (span / sheet.alone_s - 1);
    lines.push(["alone", `${seconds(sheet.alone_s)} (${more > 0 ? "+" : ""}${more.toFixed(1)} % ${more > 0 ? "by contention" : "cut off by the end of the step"})`]);
  }
  const [first, end] = sheet.layers;
  if (first >= 0) lines.push(["layers", end <= first ? "head or loss" : end - first > 1 ? `${first} to ${end - 1}` : String(first)]);
  if (sheet.chunk >= 0) lines.push(["chunk", String(sheet.chunk)]);
  if (sheet.flop) lines.push(["work", `${flop(sheet.flop)}, ${flop(sheet.flop / span)}/s`]);
  if (sheet.bytes) lines.push(["message", `${bytes(sheet.bytes)}, ${rate(sheet.bytes / span)}`]);
  const memory = [["allocated", sheet.taken_bytes], ["released", sheet.given_bytes], ["held meanwhile", sheet.held_bytes]];
  const said = memory.filter(([, size]) => size).map(([what, size]) => `${bytes(size)} ${what}`);
  if (said.length) lines.push(["memory", said.join(", ")]);
  const sources = sheet.sources.map((block) => `${block}: ${timeline.sources[block]}`);
  return { title, lines, parts: sheet.parts, sources };
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function definitions(lines) {
  const list = element("dl");
  for (const [term, value] of lines) list.append(element("dt", term), element("dd", value));
  return list;
}

function showTooltip(tooltip, found, timeline) {
  tooltip.hidden = !found;
  if (!found) return;
  const { title, lines, sources } = describe(found, timeline);
  const sourced = sources.length ? [...lines, ["sources", sources.join("; ")]] : lines;
  tooltip.replaceChildren(element("b", title), definitions(sourced));
}

function placeTooltip(tooltip, event) {
  if (tooltip.hidden) return;
  const box = tooltip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const below = event.clientY + 16;
  const top = below + box.height > innerHeight ? event.clientY - box.height - 12 : below;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function showDetails(panel, found, timeline) {
  if (!found) {
    panel.replaceChildren(element("p", "Choose an operation to see its kernels.", "hint"));
    return;
  }
  const { title, lines, parts, sources } = describe(found, timeline);
  const made = [element("h3", title), definitions(lines)];
  if (parts.length) {
    const table = element("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    table.append(element("caption", "Kernels and collectives, each without contention"));
    for (const name of ["kernel or collective", "counted as", "times", "each", "together"]) head.append(element("th", name));
    for (const [name, category, time, repeats] of parts) {
      const line = body.insertRow();
      for (const text of [name, category, `${repeats} ×`, seconds(time / repeats), seconds(time)]) line.insertCell().textContent = text;
    }
    made.push(table);
  }
  if (sources.length) made.push(element("p", `Numbers of the profile behind it: ${sources.join("; ")}.`, "hint"));
  panel.replaceChildren(...made);
}
