export { ADAPTER_ROWS, LiveTableAdapter, REACQUIRE_MS } from "./adapter.js";
export type { AdapterOptions, Resolver, RowsCallback } from "./adapter.js";
export { LiveTablesClient } from "./client.js";
export type { ClientOptions, SubscribeOptions, Unsubscribe } from "./client.js";
export { LivetablesError } from "./errors.js";
export type { Problem } from "./errors.js";
export { TableHandle } from "./handle.js";
export type { Handle } from "./handle.js";
export type { Health } from "./health.js";
export type { ControlReceipt, SqlAnswer } from "./http.js";
export { TableHub } from "./hub.js";
export type { Subscription, ViewListener, Wire } from "./hub.js";
export type {
  Column,
  ColumnType,
  Filter,
  FreshnessState,
  Limits,
  Sort,
  SourceStatus,
  Status,
  Value,
  ViewOptions,
} from "./protocol.js";
export type { RebindingStream } from "./stream.js";
export type { Observer, Stream, Unsubscribable } from "./observable.js";
export type { Socket, SocketConstructor, SocketEvent, Surroundings, WakeListener } from "./surroundings.js";
export { PAGE_ROWS } from "./view.js";
export type { Row, Window } from "./window.js";
