// A stream and a session from Node: `npm install && node client.js [TARGET]`.
"use strict";

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const definition = protoLoader.loadSync("omserve/v1/inference.proto", {
  includeDirs: [path.join(__dirname, "..", "..", "proto")],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { omserve } = grpc.loadPackageDefinition(definition);
const target = process.argv[2] ?? "localhost:50051";
const client = new omserve.v1.InferenceService(target, grpc.credentials.createInsecure());

// Fields that are left out keep their defaults; zeros that are set count as zeros.
const sampling = { temperature: 0, max_new_tokens: 16 };

function generate(prompt) {
  return new Promise((resolve, reject) => {
    const request = { prompt: { text: prompt }, sampling_params: sampling };
    client.Generate(request, (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}

async function stream(prompt) {
  const call = client.GenerateStream({ prompt: { text: prompt }, sampling_params: sampling });
  let text = "";
  for await (const event of call) {
    text += event.text;
    if (event.finish_reason !== "FINISH_REASON_UNSPECIFIED") {
      console.log(`stream: ${JSON.stringify(text)} ${event.finish_reason}`);
    }
  }
}

// Two requests over one stream; the second is cancelled behind its first event. Each event takes a
// credit of its request, and is answered by one.
async function session() {
  const call = client.Session();
  const start = (request_id, text, max_new_tokens) =>
    call.write({
      start: {
        request: {
          request_id,
          prompt: { text },
          sampling_params: { ...sampling, max_new_tokens, ignore_eos: true },
        },
        num_events: 4,
      },
    });
  start("short", "The capital of France is", 8);
  start("long", "Once upon a time", 200);
  const texts = { short: "", long: "" };
  const open = new Set(Object.keys(texts));
  for await (const { frame, event, refusal } of call) {
    if (frame === "refusal") {
      throw new Error(`${refusal.request_id} was refused: ${refusal.message}`);
    }
    const id = event.request_id;
    texts[id] += event.text;
    if (event.finish_reason === "FINISH_REASON_UNSPECIFIED") {
      call.write({ credits: { request_id: id, num_events: 1 } });
      if (id === "long") {
        call.write({ cancel: { request_id: id } });
      }
      continue;
    }
    console.log(`session: ${id} ${event.finish_reason}`);
    open.delete(id);
    if (open.size === 0) {
      call.end(); // nothing more is sent; the server then ends the session
    }
  }
}

async function main() {
  const reply = await generate("The capital of France is");
  console.log(`unary: ${JSON.stringify(reply.choices[0].text)}`);
  await stream("1, 2, 3,");
  await session();
  client.close();
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
