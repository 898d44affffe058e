// Which controls are there, and what do they say of a wrong value?

class Panel {
  // `specs` are the controls as the server describes them; `onChange` gets the fields to set.
  constructor(form, specs, onChange) {
    this.onChange = onChange;
    this.items = new Map();
    this.profile = "";
    form.addEventListener("submit", (event) => event.preventDefault());
    let group = null;
    for (const spec of specs) {
      if (spec.kind === "group") {
        group = element("fieldset");
        group.append(element("legend", spec.label));
        form.append(group);
      } else group.append(this.make(spec));
    }
  }

  // The path that a control sets: a price belongs to the cluster that is chosen.
  path(spec) { return spec.path.replace("*", this.profile); }

  make(spec) {
    const id = `c-${spec.path.replaceAll(/[.*]/g, "-")}`;
    const box = element("div", undefined, "control");
    const fault = element("p", undefined, "fault");
    fault.id = `${id}-fault`;
    fault.hidden = true;
    const item = this[spec.kind](spec, id, box);
    box.append(fault);
    box.dataset.path = spec.path;
    if (spec.path === "model") box.append(this.paste());
    this.items.set(spec.path, { spec, box, fault, ...item });
    return box;
  }

  label(spec, id, box) {
    const label = element("label", spec.label);
    label.htmlFor = id;
    label.className = "label";
    if (spec.short) label.append(element("code", spec.short));
    if (spec.unit) label.append(` (${spec.unit})`);
    box.append(label);
  }

  choice(spec, id, box) {
    this.label(spec, id, box);
    const select = element("select");
    select.id = id;
    for (const value of spec.values) select.append(new Option(value || "by default", value));
    select.addEventListener("change", () => this.onChange({ [this.path(spec)]: select.value || undefined }));
    box.append(select);
    return {
      inputs: [select],
      show: (value) => {
        const own = typeof value === "object" ? `${value.name || value.base || "own"} (as given)` : String(value);
        for (const option of [...select.options]) if (option.dataset.own) option.remove();
        if (!spec.values.includes(value)) {
          const option = new Option(own, own);
          option.dataset.own = "yes";
          select.prepend(option);
        }
        select.value = spec.values.includes(value) ? value : own;
      },
    };
  }

  slider(spec, id, box) {
    this.label(spec, id, box);
    const row = element("div", undefined, "slider"), range = element("input"), number = element("input");
    Object.assign(range, { type: "range", min: 0, max: spec.values.length - 1, step: 1 });
    Object.assign(number, { type: "number", min: 1, step: 1, id });
    range.setAttribute("aria-label", spec.label);
    range.addEventListener("input", () => {
      const value = spec.values[range.value];
      number.value = value;
      range.setAttribute("aria-valuetext", String(value));
      this.onChange({ [spec.path]: value });
    });
    number.addEventListener("change", () => {
      const value = Number(number.value);
      this.onChange({ [spec.path]: number.value === "" ? undefined : value });
    });
    row.append(range, number);
    box.append(row);
    return {
      inputs: [range, number],
      show: (value) => {
        const below = spec.values.filter((each) => each <= value).length - 1;
        range.value = Math.max(0, below);
        range.setAttribute("aria-valuetext", String(value));
        number.value = value;
      },
    };
  }

  switch(spec, id, box) {
    const name = element("span", spec.label, "label");
    name.id = id;
    const row = switchOf(spec.values, id, (value) => this.onChange({ [spec.path]: value }));
    row.setAttribute("aria-labelledby", id);
    box.append(name, row);
    const inputs = [...row.querySelectorAll("input")];
    return { inputs, show: (value) => inputs.forEach((input, k) => { input.checked = spec.values[k] === value; }) };
  }

  text(spec, id, box) {
    this.label(spec, id, box);
    const input = element("input");
    Object.assign(input, { type: "text", id, placeholder: `for example ${spec.example}`, autocomplete: "off" });
    input.addEventListener("change", () => this.onChange({ [this.path(spec)]: input.value.trim() || undefined }));
    box.append(input);
    return { inputs: [input], show: (value) => { input.value = value; } };
  }

  paste() {
    const more = element("details", undefined, "paste");
    const text = element("textarea"), use = element("button", "Use this model"), wrong = element("p", undefined, "fault");
    text.setAttribute("aria-label", "A config.json of Hugging Face");
    text.placeholder = "the whole config.json of a model";
    text.spellcheck = false;
    use.type = "button";
    use.id = "use-config";
    wrong.setAttribute("role", "alert");
    use.addEventListener("click", async () => {
      const found = await ask("model", { text: text.value });
      if (!found) return;
      wrong.replaceChildren(...(found.faults || []).map((fault) => element("span", fault.text)));
      if (found.model) {
        more.open = false;
        this.onChange({ model: found.model });
      }
    });
    more.append(element("summary", "Paste a config.json"), text, use, wrong);
    return more;
  }

  show(values) {
    this.profile = values["cluster.profile"] || "";
    for (const { spec, show } of this.items.values()) {
      const value = values[this.path(spec)];
      show(value === undefined || value === null ? spec.default : value);
    }
  }

  // Says each fault beside its control; gives back those that have none.
  blame(faults) {
    const said = new Map();
    const others = faults.filter((fault) => {
      const item = this.itemOf(fault.path);
      if (item) said.set(item, [...(said.get(item) || []), fault]);
      return !item;
    });
    for (const item of this.items.values()) {
      const found = said.get(item) || [];
      item.box.classList.toggle("wrong", found.length > 0);
      item.fault.hidden = !found.length;
      item.fault.replaceChildren(...found.flatMap(faultWords));
      for (const input of item.inputs) {
        if (found.length) {
          input.setAttribute("aria-invalid", "true"); // empty, it would mean that all is well
          input.setAttribute("aria-describedby", item.fault.id);
        } else for (const name of ["aria-invalid", "aria-describedby"]) input.removeAttribute(name);
      }
    }
    return others;
  }

  itemOf(path) {
    for (const item of this.items.values()) {
      const own = this.path(item.spec);
      if (path === own || path.startsWith(`${own}.`)) return item;
    }
    return null;
  }
}

function faultWords(fault) {
  const made = [element("span", fault.rule)];
  if (fault.hint) made.push(element("b", fault.hint));
  return made;
}

// A row of radio buttons.
function switchOf(values, name, onChange) {
  const row = element("div", undefined, "switch");
  row.setAttribute("role", "radiogroup");
  for (const value of values) {
    const label = element("label"), input = element("input");
    Object.assign(input, { type: "radio", name, value });
    input.addEventListener("change", () => onChange(value));
    label.append(input, element("span", String(value)));
    row.append(label);
  }
  return row;
}
