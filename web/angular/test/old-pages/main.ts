/** All pages of the old client in one app, for a real browser: e2e/ opens it, with the server and the key in its address. */
import { Component } from "@angular/core";
import { bootstrapApplication } from "@angular/platform-browser";
import { provideLiveTables } from "@livetables/angular";
import { AdapterPage } from "./adapter.page";
import { PagingPage } from "./paging.page";
import { RawHandlePage } from "./raw-handle.page";
import { RebindPage } from "./rebind.page";

@Component({
  standalone: true,
  selector: "app-root",
  imports: [AdapterPage, PagingPage, RawHandlePage, RebindPage],
  template: `
    <old-paging />
    <old-adapter />
    <old-rebind />
    <old-raw-handle />
  `,
})
class OldApp {}

const address = new URLSearchParams(location.hash.slice(1));
const options = { url: address.get("url") ?? "", token: address.get("key") ?? "" };
void bootstrapApplication(OldApp, { providers: [provideLiveTables(options)] });
