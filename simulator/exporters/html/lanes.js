"use strict";
// Which operations are in view? Packed columns, and lanes that find them by binary search.

function unpack(text, Type) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Type(bytes.buffer);
}

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// One stream of one class of ranks: rows in order of time that do not overlap.
class Lane {
  constructor(spec, columns, sheets) {
    this.rankClass = spec.rank_class;
    this.stream = spec.stream;
    this.count = spec.count;
    const part = (column) => column.subarray(spec.first, spec.first + spec.count);
    this.start = part(columns.start);
    this.end = part(columns.end);
    this.sheet = part(columns.sheet);
    this.microbatch = part(columns.microbatch);
    this.sheets = sheets;
    this.sums = null;
  }

  // The first row that ends after a moment; count where there is none.
  firstEndingAfter(time) {
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  // The row nearest to a moment, at most `slack` away; -1 where there is none.
  at(time, slack = 0) {
    const after = this.firstEndingAfter(time);
    let best = -1, distance = slack;
    for (const row of [after, after - 1]) {
      if (row < 0 || row >= this.count) continue;
      const away = Math.max(this.start[row] - time, time - this.end[row], 0);
      if (away <= distance) { best = row; distance = away; }
    }
    return best;
  }

  // Sums of time and of time times colour before each row, made once for each palette.
  prepare(palette) {
    if (this.sums && this.sums.palette === palette) return;
    const sums = { palette, busy: new Float64Array(this.count + 1) };
    sums.color = [0, 1, 2].map(() => new Float64Array(this.count + 1));
    for (let row = 0; row < this.count; row++) {
      const span = this.end[row] - this.start[row];
      const mean = palette.mean[this.sheet[row]];
      sums.busy[row + 1] = sums.busy[row] + span;
      for (let c = 0; c < 3; c++) sums.color[c][row + 1] = sums.color[c][row] + span * mean[c];
    }
    this.sums = sums;
  }

  // Adds this lane's time and colour in each of `width` slices of a window to `out`.
  blend(from, to, width, out) {
    const slice = (to - from) / width;
    const { busy, color: [red, green, blue], palette } = this.sums;
    let row = this.firstEndingAfter(from);
    let lastBusy = 0, lastRed = 0, lastGreen = 0, lastBlue = 0;
    for (let x = 0; x <= width; x++) {
      const time = from + x * slice;
      while (row < this.count && this.end[row] <= time) {
        if (row + 64 < this.count && this.end[row + 64] <= time) row = this.firstEndingAfter(time);
        else row++;
      }
      let nowBusy = busy[row], nowRed = red[row], nowGreen = green[row], nowBlue = blue[row];
      if (row < this.count && time > this.start[row]) {
        const inside = time - this.start[row], mean = palette.mean[this.sheet[row]];
        nowBusy += inside;
        nowRed += inside * mean[0];
        nowGreen += inside * mean[1];
        nowBlue += inside * mean[2];
      }
      if (x > 0) {
        const at = (x - 1) * 4;
        out[at] += (nowBusy - lastBusy) / slice;
        out[at + 1] += (nowRed - lastRed) / slice;
        out[at + 2] += (nowGreen - lastGreen) / slice;
        out[at + 3] += (nowBlue - lastBlue) / slice;
      }
      lastBusy = nowBusy; lastRed = nowRed; lastGreen = nowGreen; lastBlue = nowBlue;
    }
  }
}

// Colours of every sheet on a light or a dark page.
class Palette {
  constructor(sheets, isDark) {
    const pick = (pair) => pair[isDark ? 1 : 0];
    this.isDark = isDark;
    this.bands = sheets.map((s) => s.bands.map(([color, share]) => [pick(color), share]));
    this.hatch = sheets.map((s) => (s.hatch ? pick(s.hatch) : null));
    this.mean = this.bands.map((bands, sheet) => {
      const mean = [0, 0, 0];
      for (const [color, share] of bands) rgb(color).forEach((v, c) => { mean[c] += v * share; });
      if (!this.hatch[sheet]) return mean;
      return rgb(this.hatch[sheet]).map((v, c) => 0.3 * v + 0.7 * mean[c]);
    });
    // White or black, whichever the first band carries better.
    this.ink = this.bands.map((bands) => {
      const [r, g, b] = rgb(bands[0][0]).map((v) => ((v / 255 + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.179 ? "#ffffff" : "#000000";
    });
  }
}
