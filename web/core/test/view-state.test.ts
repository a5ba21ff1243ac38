import { describe, expect, it } from "vitest";
import type { Health } from "../src/health.js";
import { viewState } from "../src/view-state.js";
import type { ViewState } from "../src/view-state.js";
import { shown } from "../src/window.js";
import { COLUMNS, snapshot } from "./support/frames.js";

const WINDOW = shown(snapshot([["Ann", 30]]), COLUMNS);
const LIMITED = { ...WINDOW, hint: "only 20 rows are shown, as they are large" };
const UNKNOWN = { code: "unknown_table", problem: "there is no table usr", cure: "did you mean user?" };

function health(state: Health["state"]): Health {
  return { state, why: `because ${state}` };
}

describe("a view's own state", () => {
  const cases: readonly (readonly [string, ViewState, Parameters<typeof viewState>])[] = [
    ["live", { name: "live", why: "", hasWindow: true }, [health("live"), null, WINDOW]],
    ["waiting for rows", { name: "loading", why: "waiting for the first rows", hasWindow: false }, [health("live"), null, null]],
    ["limited by the server", { name: "limited", why: LIMITED.hint, hasWindow: true }, [health("live"), null, LIMITED]],
    ["stale, which says more than limited", { name: "stale", why: "because stale", hasWindow: true }, [health("stale"), null, LIMITED]],
    ["without a connection yet", { name: "connecting", why: "because reconnecting", hasWindow: false }, [health("reconnecting"), null, null]],
    ["without its connection", { name: "reconnecting", why: "because reconnecting", hasWindow: true }, [health("reconnecting"), UNKNOWN, WINDOW]],
    ["of a table that is not there", { name: "failed", why: "there is no table usr: did you mean user?", hasWindow: false }, [health("live"), UNKNOWN, null]],
    ["of a table that went", { name: "failed", why: "there is no table usr: did you mean user?", hasWindow: true }, [health("stale"), UNKNOWN, WINDOW]],
    ["with a wrong key", { name: "refused", why: "because refused", hasWindow: true }, [health("refused"), null, WINDOW]],
    ["not wanted", { name: "closed", why: "because closed", hasWindow: false }, [health("closed"), null, null]],
  ]; // prettier-ignore
  it.each(cases)("%s", (_, expected, given) => {
    expect(viewState(...given)).toEqual(expected);
  });
});
