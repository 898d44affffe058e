// Which span of time do all pictures show, and how are numbers written?

const GUTTER = 104; // room for the names on the left [CSS px]

class View {
  constructor(stepS) {
    this.stepS = stepS;
    this.from = 0;
    this.to = stepS;
    this.listeners = [];
  }

  get span() { return this.to - this.from; }

  show(from, to) {
    const span = Math.min(Math.max(to - from, this.stepS * 1e-7), this.stepS);
    const start = Math.min(Math.max(from, 0), this.stepS - span);
    this.from = start;
    this.to = start + span;
    this.changed();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    const span = Math.min(this.span / factor, this.stepS);
    const share = (around - this.from) / this.span;
    this.show(around - share * span, around + (1 - share) * span);
  }

  pan(share) { this.show(this.from + share * this.span, this.to + share * this.span); }

  changed() { for (const listener of this.listeners) listener(); }
}

// A canvas that is as sharp as the screen and is drawn at most once a frame.
class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.draw = draw;
    this.waiting = false;
  }

  ask() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.now(); });
  }

  now() {
    const scale = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    const pixels = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
      [this.canvas.width, this.canvas.height] = pixels;
    }
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.draw(this.context, width, height, scale);
  }
}

let isPrinting = false;

function isDark() {
  return !isPrinting && matchMedia("(prefers-color-scheme: dark)").matches;
}

function inks() {
  return isDark()
    ? { page: "#16181c", ink: "#e6e8eb", pale: "#a5abb5", rule: "#3a3f48", accent: "#6cc0f5", bad: "#ff9a57" }
    : { page: "#ffffff", ink: "#222222", pale: "#5c6068", rule: "#d9d9d9", accent: "#0060a0", bad: "#b34700" };
}

const FONT = '12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

function drawTimeAxis(context, view, x, width, top, height) {
  const ink = inks();
  const unit = [["s", 1], ["ms", 1e-3], ["us", 1e-6]].find(([, f]) => view.span >= f) || ["ns", 1e-9];
  const raw = view.span / Math.max(2, width / 110);
  const power = 10 ** Math.floor(Math.log10(raw));
  const tick = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
  const digits = Math.max(0, -Math.floor(Math.log10(tick / unit[1]) + 1e-9));
  context.font = FONT;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (let k = Math.ceil(view.from / tick); k * tick <= view.to; k++) {
    const at = x + ((k * tick - view.from) / view.span) * width;
    context.fillStyle = ink.rule;
    context.fillRect(at, top, 1, height);
    if (at > x + width - 30) continue;
    context.fillStyle = ink.pale;
    context.fillText(`${(k * tick / unit[1]).toFixed(digits)} ${unit[0]}`, Math.max(at, x + 18), top + height + 4);
  }
}

function significant(value) {
  if (value === 0) return "0";
  return value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
}

function inUnits(value, units) {
  const [name, factor] = units.find(([, f]) => Math.abs(value) >= f) || units[units.length - 1];
  return `${significant(value / factor)} ${name}`;
}

const seconds = (v) => inUnits(v, [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]]);
const bytes = (v) => inUnits(v, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
const rate = (v) => inUnits(v, [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3], ["B/s", 1]]);
const flop = (v) => inUnits(v, [["PFLOP", 1e15], ["TFLOP", 1e12], ["GFLOP", 1e9], ["MFLOP", 1e6], ["FLOP", 1]]);
