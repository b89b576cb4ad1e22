// Server-sent events out of a fetch, since EventSource cannot send the header with the API key.

// The page's own folder: it may be served below a path of a proxy.
const BASE = new URL(".", document.baseURI);

/** A request to this server, with the key of this tab when there is one. */
export function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = sessionStorage.getItem("omserve-key");
  if (key) headers.set("Authorization", `Bearer ${key}`);
  return fetch(new URL(path, BASE), { ...options, headers, cache: "no-store" });
}

/** Remember the key until the tab is closed. */
export function useKey(key) {
  sessionStorage.setItem("omserve-key", key);
}

/** The data of each event, parsed, until the stream or the answer ends. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** What the server says of a refused request. */
export async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}
