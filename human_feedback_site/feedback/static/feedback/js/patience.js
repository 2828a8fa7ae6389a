// Timeouts for slow connections: a request fails only if no data arrives for a while, however long it takes in total.

/** When any request of this page last received data. */
let lastByteAt = -Infinity;

/** Timeout of one request, restarted by each byte of its response. */
export class Patience {
  #abort = new AbortController();
  #ms;
  #most;
  #start = performance.now();
  #timer = 0;

  /**
   * @param {number} ms time without a byte until the request is aborted
   * @param {number} [most] if given, bytes of other requests extend the time, because they share the connection, but to
   *   no more than this until the first byte arrives
   */
  constructor(ms, most = 0) {
    this.#ms = ms;
    this.#most = most;
    this.#timer = setTimeout(() => this.#check(), ms);
  }

  get signal() {
    return this.#abort.signal;
  }

  /** Abort the request. */
  cancel() {
    clearTimeout(this.#timer);
    this.#abort.abort();
  }

  #check() {
    const now = performance.now();
    const rest = Math.min(lastByteAt + this.#ms, this.#start + this.#most) - now;
    if (rest > 0) this.#timer = setTimeout(() => this.#check(), rest);
    else this.#abort.abort();
  }

  /**
   * Read a response's body piece by piece.
   * @param {Response} reply
   * @param {(bytes: Uint8Array<ArrayBuffer>) => void} take
   */
  async read(reply, take) {
    try {
      const reader = reply.body?.getReader();
      for (let piece; reader && !(piece = await reader.read()).done; ) {
        lastByteAt = performance.now();
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#abort.abort(), this.#ms);
        take(piece.value);
      }
    } finally {
      clearTimeout(this.#timer);
    }
  }

  /** Read a response to its end; resolves to an equivalent response. @param {Response} reply */
  async whole(reply) {
    /** @type {Uint8Array<ArrayBuffer>[]} */
    const pieces = [];
    await this.read(reply, (bytes) => pieces.push(bytes));
    const { status, statusText, headers } = reply;
    return new Response(pieces.length ? new Blob(pieces) : null, { status, statusText, headers });
  }
}
