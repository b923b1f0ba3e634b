/** Starts the page. */
import { render } from "preact";
import { App, wanted } from "./app";
import * as live from "./live";
import * as router from "./router";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/controls.css";
import "./styles/table.css";
import "./styles/views.css";
import * as theme from "./theme";
import * as time from "./time";

theme.start();
time.start();
router.start();
live.start(wanted);
const root = document.getElementById("page");
if (root) render(<App />, root);
