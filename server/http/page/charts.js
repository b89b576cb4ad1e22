// Drawing: lines over time, and the map of blocks. Colours are the style sheet's.

const SECONDS = 120;
const PAD = { left: 46, right: 6, top: 6, bottom: 18 };

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A canvas' context in CSS pixels, cleared, and its size. */
function prepare(canvas, height) {
  if (height) canvas.style.height = `${height}px`;
  const { width: w, height: h } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(w * scale);
  canvas.height = Math.round(h * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, w, h);
  return { context, w, h };
}

/** The least of 1, 2, 5, 10, 20, ... that is not below a value. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class LineChart {
  /** `lines`: name, colour key ("one" or "two"), and how a point's value is had. */
  constructor(canvas, lines, format) {
    this.canvas = canvas;
    this.lines = lines;
    this.format = format;
    this.points = [];
    this.hovered = null;
    this.values = lines.map(({ name, key }) => {
      const item = document.createElement("li");
      const mark = document.createElement("i");
      mark.className = `key-${key}`;
      const value = document.createElement("b");
      item.append(mark, `${name} `, value);
      canvas.parentElement.querySelector(".legend").append(item);
      return value;
    });
    canvas.setAttribute("role", "img");
    canvas.addEventListener("pointermove", (event) => this.#hover(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.#hover(null));
  }

  draw(points) {
    this.points = points;
    const { context, w, h } = prepare(this.canvas);
    const area = { w: w - PAD.left - PAD.right, h: h - PAD.top - PAD.bottom };
    const all = this.lines.flatMap(({ of }) => points.map(of)).filter((v) => v !== null);
    const top = ceiling(Math.max(...all, 0) || 1);
    const x = (i) => PAD.left + area.w * (1 - (points.length - 1 - i) / SECONDS);
    const y = (value) => PAD.top + area.h * (1 - value / top);
    this.#axes(context, w, h, top, y);
    for (const { of, key } of this.lines) this.#line(context, points.map(of), x, y, key);
    this.#tell(context, points, x, h);
  }

  #axes(context, w, h, top, y) {
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("--quiet");
    context.strokeStyle = colour("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of [0, top / 2, top]) {
      const at = Math.round(y(value)) + 0.5;
      context.beginPath();
      context.moveTo(PAD.left, at);
      context.lineTo(w - PAD.right, at);
      context.stroke();
      context.fillText(this.format(value), PAD.left - 6, at);
    }
    context.textBaseline = "alphabetic";
    context.fillText("now", w - PAD.right, h - 3);
    context.textAlign = "left";
    context.fillText("2 min ago", PAD.left, h - 3);
  }

  #line(context, values, x, y, key) {
    context.strokeStyle = colour(`--${key}`);
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.beginPath();
    let isDown = false;
    values.forEach((value, i) => {
      if (value === null) {
        isDown = false;
      } else if (isDown) {
        context.lineTo(x(i), y(value));
      } else {
        // A lone point shows as a dash.
        context.moveTo(x(i) - 3, y(value));
        context.lineTo(x(i), y(value));
        isDown = true;
      }
    });
    context.stroke();
  }

  /** The values under the pointer, else the newest, in the legend. */
  #tell(context, points, x, h) {
    let index = points.length - 1;
    if (this.hovered !== null && points.length) {
      const distance = (i) => Math.abs(x(i) - this.hovered);
      index = points.reduce((best, _, i) => (distance(i) < distance(best) ? i : best), index);
      context.strokeStyle = colour("--quiet");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x(index), PAD.top);
      context.lineTo(x(index), h - PAD.bottom);
      context.stroke();
    }
    const texts = this.lines.map(({ name, of }, i) => {
      const value = points[index] ? of(points[index]) : null;
      this.values[i].textContent = value === null ? "–" : this.format(value);
      return `${name} ${this.values[i].textContent}`;
    });
    this.canvas.setAttribute("aria-label", texts.join(", "));
  }

  #hover(at) {
    this.hovered = at;
    this.draw(this.points);
  }
}

export const BLOCK_STATES = ["empty", "cached", "kept", "held", "shared"];

/** One cell for each block, as large as they fit. */
export function drawBlocks(canvas, states) {
  const width = canvas.getBoundingClientRect().width;
  let size = 14;
  const rows = () => Math.ceil(states.length / Math.floor(width / size));
  while (size > 4 && rows() * size > 168) size -= 1;
  const { context } = prepare(canvas, Math.max(size, rows() * size));
  const columns = Math.floor(width / size);
  const gap = size > 6 ? 2 : 1;
  const colours = BLOCK_STATES.map((name) => colour(`--${name}`));
  states.forEach((state, i) => {
    context.fillStyle = colours[state];
    context.fillRect((i % columns) * size, Math.floor(i / columns) * size, size - gap, size - gap);
  });
}
