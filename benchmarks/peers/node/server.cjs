// node-idempotency's core with its store in memory, on Node's own server and client.
// Arguments: port, URL of the upstream.
const http = require("node:http");
const { Idempotency } = require("@node-idempotency/core");
const { MemoryStorageAdapter } = require("@node-idempotency/storage-adapter-memory");

const [port, upstream] = process.argv.slice(2);
const idempotency = new Idempotency(new MemoryStorageAdapter(), {});
const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });

function text(stream) {
  return new Promise((resolve, reject) => {
    const chunks = [];
    stream.on("data", (chunk) => chunks.push(chunk));
    stream.on("end", () => resolve(Buffer.concat(chunks).toString()));
    stream.on("error", reject);
  });
}

function call(path, body) {
  const headers = { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) };
  return new Promise((resolve, reject) => {
    const request = http.request(upstream + path, { method: "POST", headers, agent }, async (answer) =>
      resolve({ status: answer.statusCode, body: await text(answer) }),
    );
    request.on("error", reject);
    request.end(body);
  });
}

async function charge(request, response) {
  const body = await text(request);
  const asked = {
    method: request.method, path: request.url, headers: request.headers, body: JSON.parse(body),
  };
  let known = await idempotency.onRequest(asked);
  const replayed = known !== undefined;
  if (!replayed) {
    const answer = await call(request.url, body);
    known = { body: JSON.parse(answer.body), additional: { statusCode: answer.status } };
    await idempotency.onResponse(asked, known);
  }
  response.writeHead(known.additional.statusCode, {
    "Content-Type": "application/json", "Idempotent-Replayed": String(replayed),
  });
  response.end(JSON.stringify(known.body));
}

http
  .createServer((request, response) => {
    if (request.method === "GET") return response.end();
    return charge(request, response).catch((error) => {
      response.writeHead(error.code ? 409 : 500);
      response.end(String(error));
    });
  })
  .listen(Number(port), "127.0.0.1");
