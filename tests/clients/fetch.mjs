// One wish on stdin, what was heard of it on stdout; both JSON, bodies in base64.
import { readFileSync } from "node:fs";

const wish = JSON.parse(readFileSync(0, "utf8"));
const bytes = (text) => Buffer.from(text, "base64");

function content() {
  if (wish.body !== null) return { body: bytes(wish.body) };
  if (wish.form !== null) return { body: new URLSearchParams(wish.form) };
  if (wish.parts !== null) {
    const form = new FormData();
    for (const [name, file, data] of wish.parts) {
      if (file) form.append(name, new File([bytes(data)], file));
      else form.append(name, bytes(data).toString("utf8"));
    }
    return { body: form };
  }
  if (wish.chunks !== null) {
    const left = wish.chunks.map((chunk) => Uint8Array.from(bytes(chunk)));
    const pull = (to) => (left.length ? to.enqueue(left.shift()) : to.close());
    return { body: new ReadableStream({ pull }), duplex: "half" };
  }
  return {};
}

async function once() {
  try {
    const answer = await fetch(wish.url, {
      method: wish.method,
      headers: wish.fields,
      redirect: wish.follow ? "follow" : "manual",
      signal: AbortSignal.timeout(wish.timeout_ms),
      ...content(),
    });
    const body = Buffer.from(await answer.arrayBuffer()).toString("base64");
    return { status: answer.status, headers: [...answer.headers], body, error: "" };
  } catch (error) {
    const why = `${error}: ${error.cause ?? ""}`;
    return { status: 0, headers: [], body: "", error: why };
  }
}

let heard = await once();
for (let tries = 1; tries < wish.tries && !(heard.status > 0 && heard.status < 400); tries++) {
  heard = await once();
}
process.stdout.write(JSON.stringify(heard));
