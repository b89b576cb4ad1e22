// The tables of answers and of buckets.

import { amount, duration, percent } from "./figures.js";

function cell(text, className = "") {
  const td = document.createElement("td");
  td.className = className;
  td.textContent = text;
  return td;
}

function fill(table, rows, none) {
  const body = table.tBodies[0];
  if (rows.length === 0) {
    const td = cell(none, "none");
    td.colSpan = table.tHead.rows[0].cells.length;
    rows = [[td]];
  }
  body.replaceChildren(
    ...rows.map((cells) => {
      const tr = document.createElement("tr");
      tr.append(...cells);
      return tr;
    }),
  );
}

export function fillAnswers(table, answers) {
  const rows = answers.map((answer) => {
    const prompt = answer.num_prompt_tokens;
    const done = Math.min(answer.num_computed_tokens, prompt);
    const id = cell(answer.request_id, "id");
    id.title = answer.tenant ? `${answer.request_id}, tenant ${answer.tenant}` : answer.request_id;
    return [
      id,
      cell(!answer.is_running ? "waits" : done < prompt ? "prefill" : "decode"),
      cell(done < prompt ? `${amount(done)} of ${amount(prompt)}` : amount(prompt), "wide"),
      cell(amount(answer.num_output_tokens), "number"),
      cell(amount(answer.num_cached_tokens), "number wide"),
      cell(amount(answer.num_blocks), "number"),
      cell(amount(answer.num_preemptions), "number wide"),
      cell(duration(answer.age_s), "number"),
    ];
  });
  fill(table, rows, "No answer is running or waiting.");
}

/** The buckets that ran, the most used first. */
export function fillBuckets(table, buckets) {
  const used = buckets.filter((bucket) => Number(bucket.num_steps) > 0);
  used.sort((a, b) => Number(b.num_steps) - Number(a.num_steps));
  const rows = used.map((bucket) => {
    const computed = Number(bucket.num_computed_tokens);
    const padded = Number(bucket.num_padded_tokens);
    return [
      cell(bucket.phase.replace("PHASE_", "").toLowerCase()),
      cell(`${bucket.batch} × ${bucket.tokens}`, "number"),
      cell(amount(bucket.past_blocks), "number wide"),
      cell(amount(Number(bucket.num_steps)), "number"),
      shareCell(padded / (computed + padded)),
      cell(duration(bucket.predicted_s), "number wide"),
    ];
  });
  fill(table, rows, "No step has run yet.");
}

/** A share as a bar, and its figure beside it. */
function shareCell(share) {
  const td = cell("");
  const pair = document.createElement("div");
  pair.className = "share";
  const bar = document.createElement("div");
  bar.className = "bar";
  const part = document.createElement("i");
  part.style.width = `${share * 100}%`;
  bar.append(part);
  const text = document.createElement("span");
  text.textContent = percent(share);
  pair.append(bar, text);
  td.append(pair);
  return td;
}
