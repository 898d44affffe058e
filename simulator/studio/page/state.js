// What is chosen, and how does it become a link and a question?

// Dotted paths of a job's fields, with the values they have; the query of a link says the same.
class State {
  constructor(values) {
    this.values = { ...values };
    this.past = [];
  }

  // Sets fields, as one step that can be undone; undefined leaves a field to its default.
  set(fields) {
    const before = this.values;
    this.values = { ...before, ...fields };
    for (const [path, value] of Object.entries(fields)) if (value === undefined) delete this.values[path];
    // What one slider passes on its way is one step.
    const moved = Object.keys(fields).join();
    const last = this.past[this.past.length - 1];
    if (last && last.moved === moved && Date.now() - last.at < 700) last.at = Date.now();
    else this.past.push({ values: before, moved, at: Date.now() });
    if (this.past.length > 200) this.past.shift();
  }

  undo() {
    const last = this.past.pop();
    if (last) this.values = last.values;
  }
}

function queryOf(values) {
  const query = new URLSearchParams();
  for (const [path, value] of Object.entries(values)) {
    // A text stands as it is; what would read as something else is written as JSON.
    const isPlain = typeof value === "string" && !isJson(value);
    query.append(path, isPlain ? value : JSON.stringify(value));
  }
  return query.toString();
}

function valuesOf(query) {
  const values = {};
  for (const [path, text] of new URLSearchParams(query)) {
    if (path === "token" || path === "pin") continue;
    values[path] = isJson(text) ? JSON.parse(text) : text;
  }
  return values;
}

function isJson(text) {
  try { JSON.parse(text); return true; } catch { return false; }
}

const token = new URLSearchParams(location.search).get("token") || "";
const visitor = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("");

// The answer to a question. Faults are answers, too; null where a newer question took its place.
async function ask(name, asked = {}, kind = "") {
  try {
    const answer = await fetch(`ask/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-studio-token": token },
      body: JSON.stringify({ ...asked, visitor: visitor + kind }),
    });
    const found = await answer.json();
    if (found.stale) return null;
    if (!found.bug) return found;
    return { faults: [{ path: "", text: `internal error: ${found.bug}; this is a bug in clustersim; please report it with this link`, rule: found.bug, hint: "" }] };
  } catch {
    return { faults: [{ path: "", text: "the studio does not answer; check that it is still running", rule: "", hint: "" }] };
  }
}
