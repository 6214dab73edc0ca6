import "./style/base.css";
import "./style/chat.css";
import "./style/markdown.css";
import "./style/engine.css";
import { render } from "preact";
import { ChatPage } from "./chat/page";
import { start } from "./chat/store";
import { EnginePage } from "./engine/page";
import { route } from "./route";

function Page() {
  return route.value.page === "engine" ? <EnginePage /> : <ChatPage />;
}

render(<Page />, document.getElementById("page")!);
void start();
