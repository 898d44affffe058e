// Who holds memory at every moment, on the time axis of the timeline?

class MemoryPicture {
  constructor(data, view, elements) {
    this.data = data;
    this.view = view;
    this.elements = elements;
    this.curves = data.classes.map(() => null);
    this.surface = new Surface(elements.canvas, (...given) => this.draw(...given));
    data.classes.forEach((each, index) => {
      const name = index === data.fullest ? `${each.name} (fullest)` : each.name;
      elements.select.append(new Option(name, String(index), index === data.fullest, index === data.fullest));
    });
    elements.select.addEventListener("change", () => this.surface.ask());
    elements.canvas.addEventListener("pointermove", (event) => this.say(event));
    elements.canvas.addEventListener("pointerleave", () => { elements.now.textContent = ""; });
    view.listeners.push(() => this.surface.ask());
  }

  // Columns of the class that is shown, unpacked when it is first looked at.
  get shown() {
    const index = Number(this.elements.select.value);
    if (!this.curves[index]) {
      const each = this.data.classes[index];
      const time = unpack(each.time_s, Float64Array);
      const owners = each.owners.map((owner) => ({
        ...owner,
        bytes: typeof owner.bytes === "number" ? new Float64Array(time.length).fill(owner.bytes) : unpack(owner.bytes, Float64Array),
      }));
      this.curves[index] = {
        time, owners, peakS: each.peak_s, peakBytes: each.peak_bytes, capacityBytes: each.capacity_bytes,
      };
    }
    return this.curves[index];
  }

  rowAt(time) {
    const times = this.shown.time;
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= time) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - 1);
  }

  draw(context, width, height) {
    const ink = inks(), { time, owners, peakS, peakBytes, capacityBytes } = this.shown;
    const plot = width - GUTTER, bottom = height - AXIS_PX, { view } = this;
    // A peak far below the capacity is shown as large as it can be.
    const isLow = peakBytes < 0.3 * capacityBytes;
    const top = isLow ? 1.25 * peakBytes : 1.08 * Math.max(capacityBytes, peakBytes);
    const y = (size) => bottom - (size / top) * bottom;
    const x = (moment) => GUTTER + ((moment - view.from) / view.span) * plot;
    context.fillStyle = ink.page;
    context.fillRect(0, 0, width, height);
    drawTimeAxis(context, view, GUTTER, plot, 0, bottom);
    this.nameSizes(context, ink, top, y);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, plot, bottom);
    context.clip();
    const first = this.rowAt(view.from), last = this.rowAt(view.to);
    const base = new Float64Array(last - first + 1);
    for (const owner of owners) {
      context.fillStyle = owner.color[isDark() ? 1 : 0];
      context.beginPath();
      for (let i = first; i <= last; i++) {
        const next = i < last ? time[i + 1] : view.to;
        const size = y(base[i - first] + owner.bytes[i]);
        context.lineTo(x(Math.max(time[i], view.from)), size);
        context.lineTo(x(next), size);
      }
      for (let i = last; i >= first; i--) {
        const next = i < last ? time[i + 1] : view.to;
        context.lineTo(x(next), y(base[i - first]));
        context.lineTo(x(Math.max(time[i], view.from)), y(base[i - first]));
        base[i - first] += owner.bytes[i];
      }
      context.fill();
    }
    context.strokeStyle = ink.bad;
    context.lineWidth = 1.6;
    context.setLineDash([6, 3]);
    context.beginPath();
    context.moveTo(GUTTER, y(capacityBytes));
    context.lineTo(width, y(capacityBytes));
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = ink.ink;
    context.beginPath();
    context.moveTo(x(peakS), y(peakBytes));
    context.lineTo(x(peakS) - 5, y(peakBytes) - 8);
    context.lineTo(x(peakS) + 5, y(peakBytes) - 8);
    context.fill();
    context.restore();
  }

  nameSizes(context, ink, top, y) {
    const [name, unit] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, f]) => top >= 2 * f) || ["B", 1];
    const raw = top / unit / 5;
    const power = 10 ** Math.floor(Math.log10(raw));
    const tick = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = ink.pale;
    const { capacityBytes } = this.shown, capacity = y(capacityBytes);
    for (let size = 0; size * unit < top; size += tick) {
      const at = y(size * unit);
      if (Math.abs(at - capacity) > 14) context.fillText(`${Number(size.toPrecision(6))} ${name}`, GUTTER - 8, Math.max(at, 8));
    }
    if (capacity < 0) return;
    context.fillStyle = ink.bad;
    context.fillText(`${(capacityBytes / 2 ** 30).toFixed(1)} GiB`, GUTTER - 8, capacity);
  }

  say(event) {
    const box = this.elements.canvas.getBoundingClientRect();
    const moment = this.view.from + ((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * this.view.span;
    if (moment < this.view.from || moment > this.view.to) return;
    const row = this.rowAt(moment);
    const held = this.shown.owners.map((owner) => [owner.name, owner.bytes[row]]).filter(([, size]) => size > 0);
    const total = held.reduce((sum, [, size]) => sum + size, 0);
    const largest = held.sort((a, b) => b[1] - a[1]).slice(0, 4).map(([name, size]) => `${name} ${bytes(size)}`);
    this.elements.now.textContent = `${seconds(moment)}: ${bytes(total)} (${largest.join(", ")})`;
  }
}
