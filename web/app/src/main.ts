import { bootstrapApplication } from "@angular/platform-browser";
import { App } from "./app/shell/app";

void bootstrapApplication(App);
