"use strict";
// One summary, followed over a connection that may break in any way. Text is set as text, never as markup.
(() => {
  const [text, chip, note, steps, drop] = ["text", "state", "note", "steps", "drop"].map((id) => document.getElementById(id));
  const { stream, result, silenceMs, over: ended } = document.body.dataset;
  const FOLLOW_MS = 2000; // how often a round that has failed is looked at: its user may start the next one
  let source = null, watchdog = 0, timer = 0, delay = 500, over = Boolean(ended);
  let { round } = document.body.dataset;
  let generation = null, offset = -1, restarts = 0; // of what is shown: frames are taken once, whoever sends them again
  const failed = () => chip.textContent === "failed";
  const say = (state, words) => { chip.dataset.state = state; chip.textContent = words; };
  const close = () => { clearTimeout(watchdog); clearTimeout(timer); source?.close(); source = null; };
  const heard = () => { clearTimeout(watchdog); watchdog = setTimeout(lost, Number(silenceMs)); };
  const again = (ms) => {
    close();
    const at = performance.now() + ms;
    const tick = () => {
      const left = at - performance.now();
      if (left <= 0) return open();
      say("reconnecting", `reconnecting in ${Math.ceil(left / 1000)} s`);
      timer = setTimeout(tick, Math.min(left, 250));
    };
    tick();
  };
  const lost = () => { again(delay * (0.75 + Math.random() / 2)); delay = Math.min(delay * 2, 5000); };
  const restart = (next) => {
    if (generation !== null && next !== generation) {
      note.textContent = `restarted (${++restarts}): the text begins again`;
      note.hidden = false;
      text.textContent = "";
    }
    if (next !== generation) [generation, offset] = [next, -1];
  };
  const frame = (event) => {
    const [from, at] = event.lastEventId.split("-");
    restart(from);
    if (Number(at) <= offset) return;
    offset = Number(at);
    const { msg_type: kind, data } = JSON.parse(event.data);
    if (kind === "text") text.append(String(data));
  };
  const look = () => fetch(result).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
  const follow = () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const there = await look();
      if (!over) return;
      if (there === null || there.round === round) return follow();
      [round, over, drop.hidden, generation, offset] = [there.round, false, false, null, -1];
      text.textContent = document.getElementById("error").textContent = "";
      note.textContent = `the next round has begun (${round}): the text begins again`;
      note.hidden = false;
      steps.replaceChildren();
      open();
    }, FOLLOW_MS);
  };
  const finish = async (end) => {
    if (end.status === "completed") {
      const final = end.result ?? await fetch(result).then((answer) => answer.json()).catch(() => ({}));
      text.textContent = final.summary ?? text.textContent;
    }
    if (end.error) document.getElementById("error").textContent = end.error.message;
    say("done", end.status);
    if (end.status === "failed") follow();
  };
  const open = () => {
    close();
    source = new EventSource(stream + (offset < 0 ? "" : `?after=${generation}-${offset}`));
    const on = (name, act) => source.addEventListener(name, (event) => { heard(); delay = 500; say("live", "live"); act(event); });
    on("frame", frame);
    on("reset", (event) => restart(String(JSON.parse(event.data).data.generation)));
    on("pulse", (event) => steps.replaceChildren(...JSON.parse(event.data).steps.map(([name, status]) => {
      const item = document.createElement("li");
      item.textContent = `${name}: ${status}`;
      item.dataset.status = status;
      return item;
    })));
    on("bye", () => again(500));
    on("terminal", (event) => {
      const end = JSON.parse(event.data).data;
      if (end.status === "replaced") { restart("replaced"); return again(500); } // the next round has begun
      [over, drop.hidden] = [true, true];
      close();
      finish(end);
    });
    source.addEventListener("error", (event) => { if (event.data === undefined) lost(); }); // else: a frame nobody can read
    heard();
  };
  drop.addEventListener("click", lost);
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) over ? failed() && follow() : open(); });
  if (!over) { drop.hidden = false; open(); } else if (failed()) follow();
})();
