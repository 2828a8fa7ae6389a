// Client of the REST API for the labeling page, with an error class for each way a request can fail.

import { Patience } from "../patience.js";

/**
 * @import { Choice } from "./kinds.js"
 * @import { Messages } from "./screen.js"
 *
 * Response data that the page uses.
 * @typedef {"running" | "paused" | "finished"} ExperimentState
 * @typedef {{ url: string }} Clip
 * @typedef {{ uuid: string, comparison: string, kind: string, items: Clip[] }} Lease
 * @typedef {"warned" | "stopped" | "done"} Notice
 * @typedef {{ state: ExperimentState, prompt: string, answered: number, wanted: number | null }} Own
 * @typedef {Own & { waiting_for: number | null }} Situation
 * @typedef {Situation & { leases: Lease[], lost: string[], notice: Notice | null }} Leases
 * @typedef {{ status: "counted" | "surplus", answered: number }} Answered
 * @typedef {{ lease: Lease | null, answered: number }} Undone
 * @typedef {{ kind: string, items: Clip[], better: Choice, explanation: string, practice: boolean }} Example
 * @typedef {{ answered: number, wanted: number }} Start
 * @typedef {{ step: number, answered: number | null, url: string }} Episode
 * @typedef {{ state: ExperimentState, answered: number, wanted: number | null }} Count
 * @typedef {Count & { waiting: number, start: Start | null, episodes: Episode[] }} Progress
 *
 * Data that the site embeds in the labeling page.
 * @typedef {object} Page
 * @property {string} experiment
 * @property {string} account
 * @property {number} answered
 * @property {number | null} wanted number of answers that the invitation asks for; null for no limit
 * @property {string[]} recent UUIDs of the labels that can be undone, oldest first
 * @property {number} fps
 * @property {{ shown: number, practice: number }} lessons number of examples and practice questions
 * @property {string} kind kind of the newest question, for which the page looks until the first one is there
 * @property {string} csrf_cookie
 * @property {Record<string, string>} urls
 * @property {Messages} messages
 *
 * Request data.
 * @typedef {{ count: number, held: string[], shown: string | null, kinds: string[] }} Wish
 * @typedef {{ uuid: string, lease: string, choice: Choice, response_ms: number, shown_ms: number, reason: string }} Answer
 */

const TIMEOUT_MS = 15_000;
const LONGEST_MS = 30_000; // while clips arrive over the same slow connection
const NO_CONSENT = "urn:rl-teacher:no-consent";
const TRY_LATER = [408, 425, 429];

/** The site did not respond, or asked to retry later. */
export class Away extends Error {}
/** The site responded, but can't do its work at the moment, for example because its disk is full. */
export class Failing extends Away {}
/** Something between browser and site, such as a proxy, rejects this request; other requests may get through. */
export class Stuck extends Away {}
/** The user is signed out. */
export class SignedOut extends Error {}
/** A different account is signed in with this browser; the answers of this page belong to the earlier account. */
export class OtherAccount extends Error {}
/** The labeler has not agreed to the experiment's current consent text. */
export class NoConsent extends Error {}
/** The site rejected the request for good; retrying doesn't help. */
export class Refused extends Error {}

export class Api {
  /** @param {{account: string, csrf_cookie: string, urls: Record<string, string>}} page */
  constructor({ account, csrf_cookie, urls }) {
    this.account = account;
    this.urls = urls;
    this.cookie = csrf_cookie;
    this.token = cookie(csrf_cookie);
  }

  /** @param {Wish} body @returns {Promise<Leases>} */
  leases(body) {
    return this.#post(this.urls.leases, body);
  }

  /** @param {Answer} body @returns {Promise<Answered>} */
  label(body) {
    return this.#post(this.urls.labels, body);
  }

  /** @param {string} label @param {{ uuid: string }} body @returns {Promise<Undone>} */
  undo(label, body) {
    return this.#post(`${this.urls.labels}/${encodeURIComponent(label)}/undo`, body);
  }

  /** Fetch the examples and practice questions. @returns {Promise<Example[]>} */
  async examples() {
    return (await this.#get(this.urls.examples)).items;
  }

  /** @returns {Promise<Progress>} */
  progress() {
    return this.#get(this.urls.progress);
  }

  /** @param {string} url @param {unknown} body */
  async #post(url, body) {
    // Signing in changes the CSRF token, so a new token may mean a different account. Check before sending anything.
    if (cookie(this.cookie) !== this.token) await this.#checkAccount();
    const reply = await request(url, {
      method: "POST",
      // Deliver the request even if the tab is closed meanwhile.
      keepalive: true,
      headers: { "Content-Type": "application/json", Accept: "application/json", "X-CSRFToken": this.token },
      body: JSON.stringify(body),
    });
    if (reply.ok) return json(reply);
    // If the account is the same, only the CSRF token was stale, and the check has fetched a new one.
    if ([401, 403, 404].includes(reply.status)) await this.#checkAccount();
    const problem = await refusal(reply);
    if (problem) throw new Refused(problem.detail);
    const passes = reply.status < 400 || reply.status >= 500 || TRY_LATER.includes(reply.status);
    const kind = !passes ? Stuck : isProblem(reply) ? Failing : Away;
    throw new kind(`HTTP ${reply.status}`);
  }

  /** @param {string} url */
  async #get(url) {
    const reply = await request(url, { headers: { Accept: "application/json" }, cache: "no-store" });
    if (!reply.ok) throw new Away(`HTTP ${reply.status}`);
    return json(reply);
  }

  async #checkAccount() {
    const { account } = await this.#get(this.urls.session);
    if (account === null) throw new SignedOut();
    if (account !== this.account) throw new OtherAccount();
    this.token = cookie(this.cookie);
  }
}

/** Return a random UUID. `crypto.randomUUID` exists only on https and localhost. */
export function newUuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** @param {string} name */
function cookie(name) {
  const found = document.cookie.split("; ").find((each) => each.startsWith(`${name}=`));
  return found?.slice(name.length + 1) ?? "";
}

/** @param {string} url @param {RequestInit} options */
async function request(url, options) {
  const patience = new Patience(TIMEOUT_MS, LONGEST_MS);
  try {
    return await patience.whole(await fetch(url, { credentials: "same-origin", signal: patience.signal, ...options }));
  } catch (error) {
    throw new Away(error instanceof Error ? error.message : String(error));
  }
}

/**
 * Return the problem if the site itself rejected the request for good; null for temporary failures and for responses
 * that aren't the site's own, such as a proxy's 404.
 * @param {Response} reply
 */
async function refusal(reply) {
  if (!isProblem(reply)) return null;
  const problem = await json(reply);
  if (problem.type === NO_CONSENT) throw new NoConsent();
  const final = reply.status === 404 || reply.status === 409 || (reply.status === 400 && problem.errors?.length > 0);
  return final ? problem : null;
}

/** True if a response is the site's own, not a proxy's. @param {Response} reply */
function isProblem(reply) {
  return reply.headers.get("Content-Type")?.startsWith("application/problem+json") ?? false;
}

/** @param {Response} reply */
async function json(reply) {
  try {
    return await reply.json();
  } catch {
    // Not from the site, for example the login page of a hotel network with status 200.
    throw new Away("the reply is not JSON");
  }
}
