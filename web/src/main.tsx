import { render } from "preact";
import { App, preload } from "./app";
import { here } from "./state/router";
import { startTheme } from "./state/theme";
import "./styles/index.css";

startTheme();
preload(here().path);
const root = document.getElementById("app");
if (root) render(<App />, root);
