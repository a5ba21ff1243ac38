/** A client of the server over HTTP: what the page is compared with. */

export type Value = string | number | boolean | null;
export type Row = Readonly<Record<string, Value>>;

export interface Question {
  readonly q?: string;
  /** Like "balance:desc". */
  readonly sort?: string;
  readonly filter?: readonly { readonly column: string; readonly op: string; readonly value?: unknown }[];
  readonly columns?: readonly string[];
  readonly offset?: number;
  readonly limit?: number;
}

export interface Rows {
  readonly rows: readonly Row[];
  readonly total: number;
  readonly generation: string;
}

export interface ServerStatus {
  readonly state: string;
  readonly clients: number;
  readonly subscriptions: number;
  readonly viewports: number;
}

export class HttpClient {
  readonly #url: string;
  readonly #key: string;

  constructor(url: string, key: string) {
    this.#url = url;
    this.#key = key;
  }

  async rows(table: string, question: Question = {}): Promise<Rows> {
    return (await (await this.#ask(rowsPath(table, question))).json()) as Rows;
  }

  async total(table: string, question: Question = {}): Promise<number> {
    return (await this.rows(table, { ...question, limit: 0 })).total;
  }

  async csv(table: string, question: Question = {}): Promise<string> {
    return await (await this.#ask(rowsPath(table, question), { Accept: "text/csv" })).text();
  }

  async status(): Promise<ServerStatus> {
    return (await (await this.#ask("/api/status")).json()) as ServerStatus;
  }

  async #ask(path: string, headers: Readonly<Record<string, string>> = {}): Promise<Response> {
    const response = await fetch(this.#url + path, { headers: { ...headers, Authorization: `Bearer ${this.#key}` } });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return response;
  }
}

function rowsPath(table: string, { q, sort, filter, columns, offset, limit }: Question): string {
  const asked = new URLSearchParams();
  if (q !== undefined) asked.set("q", q);
  if (sort !== undefined) asked.set("sort", sort);
  if (filter !== undefined) asked.set("filter", JSON.stringify(filter));
  if (columns !== undefined) asked.set("columns", columns.join(","));
  if (offset !== undefined) asked.set("offset", String(offset));
  if (limit !== undefined) asked.set("limit", String(limit));
  return `/api/tables/${table}/rows?${asked.toString()}`;
}
