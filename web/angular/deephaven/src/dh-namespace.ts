/** What pages take from Deephaven's namespace: the names of a table's events. */
export interface DhNamespace {
  readonly Table: {
    readonly EVENT_UPDATED: "updated";
    readonly EVENT_REQUEST_FAILED: "requestfailed";
  };
}

export const DH: DhNamespace = Object.freeze({
  Table: Object.freeze({ EVENT_UPDATED: "updated", EVENT_REQUEST_FAILED: "requestfailed" }),
});
