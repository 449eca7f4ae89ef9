// Draws the board of figures.  Given by gr.HTML: element, props, watch, trigger.
// props.structure (JSON) holds the cards of both themes; props.value (JSON) what one move changes.
const board = element.querySelector(".board");
const [live, strip, notice, cards] = ["live", "strip", "notice", "cards"].map((c) => board.querySelector("." + c));
const drawn = new Map(); // name -> {figure, plot, sentence, arrays, visible, dirty}
const queue = []; // names of dirty cards; the first is drawn in the next animation frame
let structure = null, message = null, frame = 0, settling = 0;

const theme = () => structure[document.body.classList.contains("dark") ? "dark" : "light"];
const create = (tag, className, text = "") => Object.assign(document.createElement(tag), { className, textContent: text });

const plotly = new Promise((resolve, reject) => {
  if (window.Plotly) return resolve();
  const script = document.createElement("script");
  script.src = (window.gradio_config?.root ?? "") + props.plotly;
  script.onload = resolve;
  script.onerror = () => reject(new Error("plotly.js did not load"));
  document.head.append(script);
});

function build() {
  structure = JSON.parse(props.structure || "null");
  drawn.forEach(({ plot }) => {
    sizes.unobserve(plot);
    sight.unobserve(plot);
    if (plot.data) window.Plotly.purge(plot);
  });
  drawn.clear();
  queue.length = 0;
  cards.replaceChildren(...(structure ? theme().cards.map(addCard) : []));
  strip.replaceChildren(...(structure?.strip ?? []).map(addNumber));
  receive();
}

function addCard({ name, title, wide, height, choices }) {
  const figure = create("figure", "card" + (wide ? " wide" : ""));
  const heading = create("h3", "", title), plot = create("div", "plot"), sentence = create("figcaption", "");
  figure.id = "figure-" + name;
  heading.id = figure.id + "-title";
  sentence.id = figure.id + "-sentence";
  plot.style.height = height + "px";
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-labelledby", heading.id + " " + sentence.id);
  plot.dataset.name = name;
  figure.append(choices ? withChoice(heading, choices) : heading, plot, sentence);
  drawn.set(name, { figure, plot, sentence, arrays: null, visible: false });
  sizes.observe(plot);
  sight.observe(plot);
  return figure;
}

function withChoice(heading, { label, options }) {
  const row = create("div", "head"), select = create("select", "");
  select.setAttribute("aria-label", label);
  select.append(...options.map(([value, text]) => Object.assign(create("option", "", text), { value })));
  select.addEventListener("change", () => trigger("choose", { chosen: select.value }));
  row.append(heading, select);
  return row;
}

function addNumber({ name, label, hint }) {
  const item = create("div", "number");
  item.dataset.name = name;
  item.title = hint;
  item.append(create("dt", "", label), create("dd", "", "–"));
  return item;
}

function receive() {
  const next = JSON.parse(props.value || "null");
  const fits = next && (next.problem || next.key === structure?.key);
  if (!fits || next.stamp < (message?.stamp ?? 0)) return;
  message = next;
  showNotice(next.problem);
  for (const [name, value] of Object.entries(next.strip ?? {})) {
    const cell = strip.querySelector(`[data-name="${name}"] dd`);
    if (cell) cell.textContent = value;
  }
  for (const [name, { data, sentence }] of Object.entries(next.figures ?? {})) {
    const card = drawn.get(name);
    if (!card) continue;
    card.arrays = data;
    card.sentence.textContent = sentence;
    enqueue(name);
  }
  const select = cards.querySelector("select");
  if (select && next.chosen) select.value = next.chosen;
  clearTimeout(settling);
  if (next.final) live.textContent = next.say ?? "";
  else settling = setTimeout(() => trigger("settle"), 300);
}

function showNotice(problem) {
  notice.hidden = !problem;
  board.classList.toggle("stale", !!problem);
  notice.replaceChildren(...(problem ?? []).map((line, index) => create(index ? "p" : "strong", "", line)));
}

function enqueue(name) {
  if (!queue.includes(name)) queue.push(name);
  if (!frame) frame = requestAnimationFrame(draw);
}

async function draw() {
  try {
    await plotly;
    const index = queue.findIndex((name) => drawn.get(name).visible);
    if (index >= 0) paint(...queue.splice(index, 1));
  } finally { // one figure that fails must not stop the others
    const waiting = queue.some((name) => drawn.get(name).visible);
    board.dataset.drawn = waiting ? "" : message?.stamp ?? "";
    frame = waiting && window.Plotly ? requestAnimationFrame(draw) : 0;
  }
}

function paint(name) {
  const { plot, arrays } = drawn.get(name);
  const spec = theme().cards.find((card) => card.name === name);
  if (!arrays || !plot.clientWidth) return;
  const data = spec.data.map((trace, index) => ({ ...trace, ...arrays[index] }));
  const layout = { ...spec.layout, template: theme().template, width: plot.clientWidth, height: spec.height };
  window.Plotly.react(plot, data, layout, { displayModeBar: false });
}

const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => enqueue(target.dataset.name)));
const sight = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  const card = drawn.get(target.dataset.name);
  if (card) card.visible = isIntersecting;
  if (card && isIntersecting) enqueue(target.dataset.name);
}), { rootMargin: "200px" });
new MutationObserver(() => drawn.forEach((_, name) => enqueue(name))).observe(document.body, { attributeFilter: ["class"] });

watch("structure", build);
watch("value", receive);
build();
