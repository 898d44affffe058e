// What did every class of ranks do at every moment? Rows down, time to the right.

const AXIS_PX = 24, GAP_PX = 5, COMPUTE_PX = 20, THIN_PX = 7;
const DENSE = 0.2; // more operations per pixel than this are blended

class Timeline {
  constructor(data, sources, view, elements) {
    const columns = {
      start: unpack(data.start_s, Float64Array),
      end: unpack(data.end_s, Float64Array),
      sheet: unpack(data.sheet, Uint32Array),
      microbatch: unpack(data.microbatch, Int32Array),
    };
    this.classes = data.classes;
    this.sheets = data.sheets;
    this.sources = sources;
    this.rows = columns.start.length;
    this.lanes = data.lanes.map((spec) => new Lane(spec, columns, data.sheets));
    this.view = view;
    this.elements = elements;
    this.shown = new Set(this.lanes.map((lane) => lane.stream));
    this.chosen = null; // {lane, row}
    this.hovered = null;
    this.palettes = [false, true].map((dark) => new Palette(data.sheets, dark));
    this.hatches = new Map();
    this.surface = new Surface(elements.canvas, (...given) => this.draw(...given));
    this.blended = document.createElement("canvas");
    view.listeners.push(() => this.surface.ask());
    this.layOut();
    this.listen();
  }

  showStreams(names) {
    this.shown = new Set(names);
    if (this.chosen && !this.shown.has(this.chosen.lane.stream)) this.choose(null);
    this.layOut();
    this.surface.ask();
  }

  // Places every lane that is shown; waits lie in the gaps of the compute stream.
  layOut() {
    const isWide = (stream) => stream === "compute" || stream === "waits";
    const streams = [...new Set(this.lanes.map((lane) => lane.stream))].filter((s) => this.shown.has(s));
    const thin = streams.filter((stream) => !isWide(stream));
    const wide = streams.some(isWide) ? COMPUTE_PX : 0;
    this.rowHeight = GAP_PX + wide + thin.length * (THIN_PX + 1);
    this.slots = [];
    for (const lane of this.lanes) {
      if (!this.shown.has(lane.stream)) continue;
      const row = lane.rankClass * this.rowHeight + GAP_PX / 2;
      const place = thin.indexOf(lane.stream);
      const top = place < 0 ? row : row + wide + 1 + place * (THIN_PX + 1);
      this.slots.push({ lane, top, height: place < 0 ? wide : THIN_PX });
    }
    const total = this.classes.length * this.rowHeight + AXIS_PX;
    // As large as it likes to be first: what it was before says nothing of the room there is.
    this.elements.canvas.style.height = `${total}px`;
    const room = isPrinting ? total : Math.min(total, this.elements.scroller.clientHeight || total, innerHeight * 0.7);
    this.elements.canvas.style.height = `${room}px`;
    this.elements.spacer.style.height = `${total - room}px`;
  }

  get scrolled() { return isPrinting ? 0 : this.elements.scroller.scrollTop; }

  draw(context, width, height, scale) {
    const ink = inks(), palette = this.palettes[isDark() ? 1 : 0];
    const plot = width - GUTTER, bottom = height - AXIS_PX;
    context.fillStyle = ink.page;
    context.fillRect(0, 0, width, height);
    drawTimeAxis(context, this.view, GUTTER, plot, 0, bottom);
    context.save();
    context.beginPath();
    context.rect(0, 0, width, bottom);
    context.clip();
    this.nameRows(context, ink, bottom);
    context.beginPath();
    context.rect(GUTTER, 0, plot, bottom);
    context.clip();
    const dense = [];
    for (const slot of this.slots) {
      const y = slot.top - this.scrolled;
      if (y > bottom || y + slot.height < 0) continue;
      const { lane } = slot;
      const first = lane.firstEndingAfter(this.view.from);
      const beyond = Math.min(lane.count, lane.firstEndingAfter(this.view.to) + 1);
      if (beyond - first > plot * DENSE) dense.push([lane, y, slot.height]);
      else this.drawBoxes(context, palette, lane, first, beyond, y, slot.height, plot);
    }
    this.drawBlended(context, palette, dense, plot, scale);
    for (const [mark, color] of [[this.hovered, ink.pale], [this.chosen, ink.accent]]) {
      if (mark) this.outline(context, mark, color, plot);
    }
    context.restore();
  }

  nameRows(context, ink, bottom) {
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(14 / this.rowHeight));
    for (let row = 0; row < this.classes.length; row += every) {
      const y = row * this.rowHeight + this.rowHeight / 2 - this.scrolled;
      if (y < -10 || y > bottom + 10) continue;
      context.fillStyle = ink.ink;
      context.fillText(this.classes[row].name, GUTTER - 8, y, GUTTER - 12);
    }
  }

  x(time, plot) { return GUTTER + ((time - this.view.from) / this.view.span) * plot; }

  drawBoxes(context, palette, lane, first, beyond, y, height, plot) {
    const isWait = lane.stream === "waits", isThin = height < COMPUTE_PX;
    let brush = null;
    const paint = (color) => { if (color !== brush) context.fillStyle = brush = color; };
    context.font = FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = first; row < beyond; row++) {
      const left = Math.max(this.x(lane.start[row], plot), GUTTER - 2);
      const right = Math.min(this.x(lane.end[row], plot), GUTTER + plot + 2);
      const edge = isWait ? 0 : Math.min(1, (right - left) * 0.08);
      const width = Math.max(right - left - edge, isThin ? 1 : 0);
      const sheet = lane.sheet[row];
      let top = y;
      for (const [color, share] of palette.bands[sheet]) {
        paint(color);
        context.fillRect(left, top, width, height * share);
        top += height * share;
      }
      if (isWait) {
        if (width < 3) continue;
        paint(this.hatch(context, palette.hatch[sheet]));
        context.fillRect(left, y, width, height);
      } else if (width > 22 && !isThin && lane.microbatch[row] >= 0) {
        paint(palette.ink[sheet]);
        const middle = y + height * Math.max(0.3, palette.bands[sheet][0][1] / 2);
        context.fillText(String(lane.microbatch[row]), left + width / 2, middle);
      }
    }
  }

  // Where operations are narrower than pixels, each pixel is the mean of what happened in it.
  drawBlended(context, palette, dense, plot, scale) {
    if (!dense.length) return;
    const width = Math.max(1, Math.round(plot * scale));
    const picture = this.blended;
    if (picture.width < width || picture.height < dense.length) {
      picture.width = width;
      picture.height = Math.max(picture.height, dense.length);
    }
    const brush = picture.getContext("2d");
    const image = brush.createImageData(width, dense.length);
    const sums = new Float64Array(width * 4);
    dense.forEach(([lane], line) => {
      lane.prepare(palette);
      sums.fill(0);
      lane.blend(this.view.from, this.view.to, width, sums);
      for (let x = 0; x < width; x++) {
        // As much of a pixel is covered as was busy; what lies behind shows through.
        const at = (line * width + x) * 4, share = Math.min(1, sums[x * 4]);
        image.data[at + 3] = Math.round(255 * share);
        for (let c = 0; c < 3; c++) image.data[at + c] = share ? sums[x * 4 + 1 + c] / share : 0;
      }
    });
    brush.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    dense.forEach(([, y, height], line) => {
      context.drawImage(picture, 0, line, width, 1, GUTTER, y, plot, height);
    });
  }

  hatch(context, color) {
    if (!this.hatches.has(color)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 8;
      const brush = tile.getContext("2d");
      brush.strokeStyle = color;
      brush.lineWidth = 1.4;
      for (const shift of [-8, 0, 8]) {
        brush.beginPath();
        brush.moveTo(shift - 1, 9);
        brush.lineTo(shift + 9, -1);
        brush.stroke();
      }
      this.hatches.set(color, context.createPattern(tile, "repeat"));
    }
    return this.hatches.get(color);
  }

  outline(context, { lane, row }, color, plot) {
    const slot = this.slots.find((each) => each.lane === lane);
    if (!slot) return;
    const left = this.x(lane.start[row], plot), right = this.x(lane.end[row], plot);
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.strokeRect(left - 1, slot.top - this.scrolled - 1, Math.max(right - left, 1) + 2, slot.height + 2);
  }

  // What lies under a point of the canvas [CSS px]; null where there is nothing.
  find(x, y) {
    const plot = this.elements.canvas.clientWidth - GUTTER;
    if (x < GUTTER || y > this.elements.canvas.clientHeight - AXIS_PX) return null;
    const time = this.view.from + ((x - GUTTER) / plot) * this.view.span;
    const slack = (3 / plot) * this.view.span;
    const here = this.slots.filter(({ top, height }) => {
      const from = top - this.scrolled;
      return y >= from - 1 && y <= from + height + 1;
    });
    for (const reach of [0, slack]) {
      for (const { lane } of here) {
        const row = lane.at(time, reach);
        if (row >= 0) return { lane, row };
      }
    }
    return null;
  }

  choose(found, { follow = false } = {}) {
    this.chosen = found;
    showDetails(this.elements.details, found, this);
    if (found && follow) this.bringIntoView(found);
    this.surface.ask();
  }

  bringIntoView({ lane, row }) {
    const { view } = this;
    const start = lane.start[row], end = lane.end[row];
    if (start < view.from || end > view.to) {
      const span = Math.max(view.span, (end - start) * 1.5);
      view.show((start + end - span) / 2, (start + end + span) / 2);
    }
    const slot = this.slots.find((each) => each.lane === lane);
    const { scroller, canvas } = this.elements, room = canvas.clientHeight - AXIS_PX;
    if (slot.top < scroller.scrollTop) scroller.scrollTop = slot.top - GAP_PX;
    const excess = slot.top + slot.height - scroller.scrollTop - room;
    if (excess > 0) scroller.scrollTop += excess + GAP_PX;
  }

  // The chosen operation's neighbour: the one before or after it, or the nearest of another lane.
  step(along, across) {
    if (!this.chosen) {
      const slot = this.slots.find((each) => each.lane.count);
      if (slot) this.choose({ lane: slot.lane, row: slot.lane.at(this.view.from, Infinity) }, { follow: true });
      return;
    }
    const { lane, row } = this.chosen;
    if (along) {
      const next = Math.min(Math.max(row + along, 0), lane.count - 1);
      this.choose({ lane, row: next }, { follow: true });
      return;
    }
    const order = this.slots.filter((slot) => slot.lane.count).sort((a, b) => a.top - b.top).map((slot) => slot.lane);
    const other = order[order.indexOf(lane) + across];
    if (other) {
      const middle = (lane.start[row] + lane.end[row]) / 2;
      this.choose({ lane: other, row: other.at(middle, Infinity) }, { follow: true });
    }
  }

  listen() {
    const { canvas, scroller, tooltip } = this.elements;
    let grip = null;
    const pointers = new Map();
    const local = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const timeAt = (x) => this.view.from + ((x - GUTTER) / (canvas.clientWidth - GUTTER)) * this.view.span;
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      grip = { x: event.clientX, y: event.clientY, top: scroller.scrollTop, moved: false, from: this.view.from };
      if (pointers.size === 2) {
        const [a, b] = [...pointers.values()];
        grip.pinch = { apart: Math.abs(a - b), span: this.view.span, around: timeAt((a + b) / 2 - canvas.getBoundingClientRect().left) };
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      if (pointers.has(event.pointerId)) pointers.set(event.pointerId, event.clientX);
      if (grip && grip.pinch && pointers.size === 2) {
        const [a, b] = [...pointers.values()];
        this.view.zoom((this.view.span / grip.pinch.span) * (Math.abs(a - b) / Math.max(1, grip.pinch.apart)), grip.pinch.around);
        return;
      }
      if (grip) {
        const dx = event.clientX - grip.x, dy = event.clientY - grip.y;
        grip.moved = grip.moved || Math.hypot(dx, dy) > 3;
        if (grip.moved) {
          canvas.classList.add("dragged");
          tooltip.hidden = true;
          const shift = (dx / (canvas.clientWidth - GUTTER)) * this.view.span;
          this.view.show(grip.from - shift, grip.from - shift + this.view.span);
          scroller.scrollTop = grip.top - dy;
        }
        return;
      }
      const found = this.find(...local(event));
      const is = (a, b) => a === b || (a && b && a.lane === b.lane && a.row === b.row);
      if (!is(found, this.hovered)) {
        this.hovered = found;
        this.surface.ask();
        showTooltip(tooltip, found, this);
      }
      placeTooltip(tooltip, event);
    });
    const release = (event) => {
      pointers.delete(event.pointerId);
      if (grip && !grip.moved && !grip.pinch && event.type === "pointerup") this.choose(this.find(...local(event)));
      if (!pointers.size) grip = null;
      canvas.classList.remove("dragged");
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => {
      this.hovered = null;
      tooltip.hidden = true;
      this.surface.ask();
    });
    canvas.addEventListener("dblclick", (event) => this.view.zoom(3, timeAt(local(event)[0])));
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.view.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.1 : 0.004)), timeAt(local(event)[0]));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        this.view.pan((event.deltaX || event.deltaY) / canvas.clientWidth);
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    scroller.addEventListener("scroll", () => this.surface.ask());
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const middle = this.chosen ? (this.chosen.lane.start[this.chosen.row] + this.chosen.lane.end[this.chosen.row]) / 2 : undefined;
    const around = middle >= view.from && middle <= view.to ? middle : undefined;
    const keys = {
      ArrowLeft: () => (event.shiftKey ? view.pan(-0.2) : this.step(-1, 0)),
      ArrowRight: () => (event.shiftKey ? view.pan(0.2) : this.step(1, 0)),
      ArrowUp: () => this.step(0, -1),
      ArrowDown: () => this.step(0, 1),
      "+": () => view.zoom(1.5, around),
      "=": () => view.zoom(1.5, around),
      "-": () => view.zoom(1 / 1.5, around),
      0: () => view.show(0, view.stepS),
      f: () => this.focusChosen(),
      Escape: () => this.choose(null),
    };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  focusChosen() {
    if (!this.chosen) return;
    const { lane, row } = this.chosen;
    const margin = (lane.end[row] - lane.start[row]) * 2;
    this.view.show(lane.start[row] - margin, lane.end[row] + margin);
  }
}
