// The chat box: a conversation over the same route that OpenAI's clients use.

import { duration } from "./figures.js";
import { ask, errorOf, events } from "./sse.js";

const log = document.getElementById("chat-log");
const form = document.getElementById("chat-form");
const input = document.getElementById("chat-input");
const send = document.getElementById("chat-send");
const limit = document.getElementById("chat-tokens");

let messages = [];
let running = null;

function show(role, text) {
  const bubble = document.createElement("div");
  bubble.className = `message ${role}`;
  bubble.textContent = text;
  log.append(bubble);
  log.scrollTop = log.scrollHeight;
  return bubble;
}

function note(bubble, text) {
  const small = document.createElement("small");
  small.textContent = text;
  bubble.append(small);
  log.scrollTop = log.scrollHeight;
}

async function answer(bubble, signal) {
  const start = performance.now();
  let first = null;
  let text = "";
  let usage = null;
  let reason = null;
  const body = {
    messages,
    stream: true,
    max_tokens: Number(limit.value),
    stream_options: { include_usage: true },
  };
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Error(await errorOf(response));
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const [choice] = event.choices;
    usage = event.usage ?? usage;
    reason = choice?.finish_reason ?? reason;
    const piece = choice?.delta?.content;
    if (!piece) continue;
    first ??= performance.now();
    text += piece;
    bubble.textContent = text;
    log.scrollTop = log.scrollHeight;
  }
  messages.push({ role: "assistant", content: text });
  const seconds = (performance.now() - start) / 1000;
  const parts = [`${usage?.completion_tokens ?? 0} tokens in ${duration(seconds)}`];
  if (first) parts.push(`first after ${duration((first - start) / 1000)}`);
  if (reason === "length") parts.push("cut at the limit of tokens");
  note(bubble, parts.join(", "));
}

async function submit() {
  const text = input.value.trim();
  if (!text) return;
  input.value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  const bubble = show("assistant", "…");
  running = new AbortController();
  send.textContent = "Stop";
  try {
    await answer(bubble, running.signal);
  } catch (error) {
    // What was not answered is not part of the conversation.
    messages.pop();
    if (bubble.textContent === "…") bubble.textContent = "";
    if (error.name === "AbortError") {
      note(bubble, "stopped");
    } else {
      bubble.classList.add("error");
      note(bubble, error.message);
    }
  } finally {
    running = null;
    send.textContent = "Send";
    input.focus();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else submit();
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running && form.reportValidity()) submit();
  }
});
document.getElementById("chat-clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  log.replaceChildren();
});
