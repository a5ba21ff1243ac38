/** On a fake socket, so that a frame comes exactly when a test wants it; e2e/ has the real server and browser. */
import { Component, inputBinding, signal } from "@angular/core";
import type { ComponentFixture } from "@angular/core/testing";
import { TestBed } from "@angular/core/testing";
import { beforeEach, describe, expect, it } from "vitest";
import { FakeSurroundings, settled } from "../../core/test/support/fake.js";
import { COLUMNS, error, patch, schema, snapshot, status, WELCOME } from "../../core/test/support/frames.js";
import { LiveTableComponent, LiveTableService, provideLiveTables } from "../src/index";
import type { LiveTableView } from "../src/index";

let world: FakeSurroundings;
let service: LiveTableService;

beforeEach(async () => {
  world = new FakeSurroundings();
  TestBed.configureTestingModule({
    providers: [provideLiveTables({ url: "http://host:8080", token: "the key", surroundings: world })],
  });
  service = TestBed.inject(LiveTableService);
  const connecting = service.connect();
  world.socket.open();
  world.socket.receive(WELCOME);
  world.socket.receive(status("live"));
  await connecting;
});

describe("LiveTableService", () => {
  it("has health and status as signals", () => {
    expect(service.healthNow().state).toBe("live");
    world.socket.receive(status("pipeline_down"));
    expect(service.healthNow().state).toBe("stale");
    expect(service.statusNow()?.state).toBe("pipeline_down");
  });

  it("has a window that follows its signals, and ends with its component", async () => {
    const quick = signal("");

    @Component({ template: `{{ rows()?.total }}` })
    class Page {
      readonly rows = service.windowOf(
        () => "user",
        () => ({ quick: quick() }),
      );
    }

    const page = TestBed.createComponent(Page);
    await page.whenStable();
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 30]]));
    await page.whenStable();
    expect(text(page)).toBe("1");
    quick.set("bob");
    await page.whenStable();
    expect(text(page)).toBe("1"); // until the other rows are here
    expect(service.hub.viewports).toBe(1);
    page.destroy();
    expect(service.hub.viewports).toBe(0);
  });

  it("has a state that follows its signals", async () => {
    const name = signal("user");

    @Component({ template: `{{ state()?.name }}` })
    class Page {
      readonly state = service.stateOf(name);
    }

    const page = TestBed.createComponent(Page);
    await page.whenStable();
    expect(text(page)).toBe("loading");
    name.set("usr");
    await page.whenStable();
    world.socket.receive(error("unknown_table", 1));
    await page.whenStable();
    expect(text(page)).toBe("failed");
  });

  it("has latency as a signal, from Kafka to here", async () => {
    service.subscribe("user", () => undefined);
    const sent = world.now() - 4;
    const receipt = { kafka: sent - 24, spark: sent - 9, applied: sent - 1, sent };
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 30]]));
    world.socket.receive(patch({ receipt }, { sequence: 2 }));
    expect(service.latencyNow()).toBeNull();
    await world.pass(1_000);
    expect(service.latencyNow()?.total.p50).toBeCloseTo(28, 0);
  });

  it("closes its connection with the app, and leaves no timer", async () => {
    TestBed.resetTestingModule();
    await settled();
    expect([world.openSockets, world.timers]).toEqual([[], 0]);
  });
});

describe("LiveTableComponent", () => {
  async function table(pageSize: number, initialOffset = 0): Promise<ComponentFixture<LiveTableComponent>> {
    const fixture = TestBed.createComponent(LiveTableComponent, {
      bindings: [
        inputBinding("tableName", () => "user"),
        inputBinding("pageSize", () => pageSize),
        inputBinding("initialOffset", () => initialOffset),
      ],
    });
    await fixture.whenStable();
    return fixture;
  }

  async function press(fixture: ComponentFixture<unknown>, name: string): Promise<void> {
    button(fixture, name).click();
    await fixture.whenStable();
  }

  it("shows the rows of its page, and where it is", async () => {
    const fixture = await table(2);
    world.socket.receive(schema());
    world.socket.receive({
      ...snapshot([
        ["Ann", 30],
        ["Bob", 40],
      ]),
      total: 5,
    });
    await fixture.whenStable();
    const element = fixture.nativeElement as HTMLElement;
    expect([...element.querySelectorAll("td")].map((cell) => cell.textContent)).toEqual(["Ann", "30", "Bob", "40"]);
    expect(text(fixture)).toContain("rows 1 to 2 of 5");
  });

  it("announces where its page begins, and not each record that comes", async () => {
    const fixture = await table(2);
    const element = fixture.nativeElement as HTMLElement;
    const announced = (): string | undefined => element.querySelector(".place [aria-live]")?.textContent;
    world.socket.receive(schema());
    world.socket.receive({ ...snapshot([["Ann", 30]]), total: 1 });
    await fixture.whenStable();
    const first = announced();
    world.socket.receive(patch({ inserted: [[1, 9, ["Bob", 40]]], total: 3 }, { sequence: 2 }));
    await fixture.whenStable();
    expect(text(fixture)).toContain("rows 1 to 2 of 3");
    expect([first, announced()]).toEqual(["rows 1", "rows 1"]);
    await press(fixture, "Next");
    world.socket.receive({ ...snapshot([["Eve", 50]], { revision: 1 }), offset: 2, total: 3 });
    await fixture.whenStable();
    expect(announced()).toBe("rows 3");
  });

  it("names what can be scrolled", async () => {
    const fixture = await table(2);
    const scroller = (fixture.nativeElement as HTMLElement).querySelector(".rows");
    expect([scroller?.getAttribute("role"), scroller?.getAttribute("aria-label")]).toEqual(["region", "Rows of user"]);
  });

  it("turns pages: next, previous, first", async () => {
    const fixture = await table(2, 2);
    world.socket.receive(schema());
    world.socket.receive({
      ...snapshot([
        ["Ann", 30],
        ["Bob", 40],
      ]),
      offset: 2,
      total: 5,
    });
    await fixture.whenStable();
    await press(fixture, "Next");
    expect(world.socket.of("set").at(-1)).toMatchObject({ offset: 4, size: 2 });
    world.socket.receive({ ...snapshot([["Eve", 50]], { revision: 1 }), offset: 4, total: 5 });
    await fixture.whenStable();
    expect(button(fixture, "Next").disabled).toBe(true);
    await press(fixture, "Prev");
    expect(world.socket.of("set").at(-1)).toMatchObject({ offset: 2 });
    await press(fixture, "First");
    expect(world.socket.of("set").at(-1)).toMatchObject({ offset: 0 });
    expect(world.socket.of("subscribe")).toHaveLength(1);
  });

  it("asks for its page again on Refresh", async () => {
    const fixture = await table(2);
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 30]]));
    await fixture.whenStable();
    await press(fixture, "Refresh");
    expect(world.socket.of("resync")).toHaveLength(1);
  });

  it("keeps the element of a row that moves", async () => {
    const fixture = await table(2);
    const element = fixture.nativeElement as HTMLElement;
    world.socket.receive(schema());
    world.socket.receive({
      ...snapshot([
        ["Ann", 30],
        ["Bob", 40],
      ]),
      ids: [7, 8],
    });
    await fixture.whenStable();
    const bob = element.querySelectorAll("tbody tr")[1];
    world.socket.receive({
      ...snapshot(
        [
          ["Bob", 40],
          ["Ann", 31],
        ],
        { sequence: 2 },
      ),
      ids: [8, 7],
    });
    await fixture.whenStable();
    expect(element.querySelectorAll("tbody tr")[0]).toBe(bob);
  });

  it("goes on behind the last row of a page that the server has cut", async () => {
    const fixture = await table(3);
    world.socket.receive(schema());
    world.socket.receive({ ...snapshot([["Ann", 30]]), total: 5, hint: "only 1 row is shown, as rows are large" });
    await fixture.whenStable();
    await press(fixture, "Next");
    expect(world.socket.of("set").at(-1)).toMatchObject({ offset: 1, size: 3 });
  });

  it("shows what of the table it is given, and begins again where other rows are found", async () => {
    const view = signal<LiveTableView>({ columns: ["name"], quick: "a" });
    const fixture = TestBed.createComponent(LiveTableComponent, {
      bindings: [
        inputBinding("tableName", () => "user"),
        inputBinding("pageSize", () => 2),
        inputBinding("view", view),
      ],
    });
    await fixture.whenStable();
    expect(world.socket.of("subscribe")).toMatchObject([
      { view: { columns: ["name"], quick: "a", offset: 0, size: 2 } },
    ]);
    world.socket.receive(schema({}, COLUMNS.slice(0, 1)));
    world.socket.receive({ ...snapshot([["Ann"], ["Ada"]]), total: 5 });
    await fixture.whenStable();
    await press(fixture, "Next");
    view.set({ quick: "a", sort: undefined });
    await fixture.whenStable();
    expect(world.socket.of("set").at(-1)).toMatchObject({ columns: null, quick: "a", offset: 2 });
    view.set({ filters: [{ column: "age", op: "is_null" }] });
    await fixture.whenStable();
    expect(world.socket.of("set").at(-1)).toMatchObject({
      quick: "",
      filters: [{ column: "age" }],
      offset: 0,
      size: 2,
    });
    expect(world.socket.of("subscribe")).toHaveLength(1);
  });

  describe("shows the state of its own rows", () => {
    function state(fixture: ComponentFixture<unknown>): Element {
      const found = (fixture.nativeElement as HTMLElement).querySelector("live-state");
      if (!found) throw new Error("there is no state");
      return found;
    }

    function shown(fixture: ComponentFixture<unknown>): string {
      return state(fixture).textContent.trim();
    }

    it("to everybody: it is a live region, there before it has a text", async () => {
      const fixture = await table(2);
      world.socket.receive(schema());
      world.socket.receive(snapshot([["Ann", 30]]));
      await fixture.whenStable();
      const { role, ariaLive } = { role: state(fixture).role, ariaLive: state(fixture).ariaLive };
      expect([role, ariaLive, shown(fixture)]).toEqual(["status", "polite", ""]);
    });

    it("while rows are on the way", async () => {
      const fixture = await table(2);
      expect(shown(fixture)).toBe("Loading: waiting for the first rows");
      expect(state(fixture).classList).toContain("blank");
    });

    it("when they are old, and why", async () => {
      const fixture = await table(2);
      world.socket.receive(schema());
      world.socket.receive(snapshot([["Ann", 30]]));
      world.socket.receive(status("catching_up", "12,000 records are still to be read"));
      await fixture.whenStable();
      expect(shown(fixture)).toBe("Not current: 12,000 records are still to be read");
      expect(state(fixture).classList).not.toContain("blank");
    });

    it("when the connection is lost, and when it is back", async () => {
      const fixture = await table(2);
      world.socket.receive(schema());
      world.socket.receive(snapshot([["Ann", 30]]));
      world.socket.drop(1006);
      await fixture.whenStable();
      expect(shown(fixture)).toBe("Reconnecting: the connection to the server is lost");
      expect(text(fixture)).toContain("Ann");
      await world.pass(10_000);
      world.socket.open();
      world.socket.receive(WELCOME);
      world.socket.receive(status("live"));
      await fixture.whenStable();
      expect(shown(fixture)).toBe("");
    });

    it("when the key is wrong", async () => {
      const fixture = await table(2);
      world.socket.drop(4401, "the key is wrong");
      await fixture.whenStable();
      expect([shown(fixture), state(fixture).getAttribute("data-state")]).toEqual([
        "Refused: the key is wrong",
        "refused",
      ]);
    });

    it("when there is no such table", async () => {
      const fixture = await table(2);
      world.socket.receive(error("unknown_table", 0));
      await fixture.whenStable();
      expect(shown(fixture)).toBe("Cannot be shown: problem: unknown_table: fix it");
    });

    it("while the server limits them, in the server's words", async () => {
      const fixture = await table(2);
      world.socket.receive(schema());
      world.socket.receive({ ...snapshot([["Ann", 30]]), hint: "refreshed less often, as it takes 900 ms" });
      await fixture.whenStable();
      expect(shown(fixture)).toBe("Limited: refreshed less often, as it takes 900 ms");
      world.socket.receive(patch({}, { sequence: 2 }));
      await fixture.whenStable();
      expect(shown(fixture)).toBe("");
    });
  });

  it("leaves no viewport behind", async () => {
    const fixture = await table(2);
    expect(service.hub.viewports).toBe(1);
    fixture.destroy();
    expect(service.hub.viewports).toBe(0);
  });
});

function text(fixture: ComponentFixture<unknown>): string {
  return (fixture.nativeElement as HTMLElement).textContent.trim();
}

function button(fixture: ComponentFixture<unknown>, name: string): HTMLButtonElement {
  const buttons = [...(fixture.nativeElement as HTMLElement).querySelectorAll("button")];
  const found = buttons.find((each) => each.textContent.trim() === name);
  if (!found) throw new Error(`there is no button ${name}`);
  return found;
}
