// The table of the topics that are furthest behind, and what each waits for.

import { count, element, minute, nameElement, sentenceNode } from "./text.js";
import { behind } from "./heat_map.js";

const SHOWN = 10;
const by = (id) => document.getElementById(id);

/** Shows the lowest watermarks of a flow document. `choose(topic)` is called for a topic that was chosen. */
export function showWatermarks(flow, choose) {
  const focused = document.activeElement?.dataset.watermark;
  const shown = flow.watermarks.slice(0, SHOWN);
  const rows = shown.map((each) => {
    const button = element("button", "link", nameElement(each.topic));
    button.type = "button";
    button.dataset.watermark = each.topic;
    button.addEventListener("click", () => choose(each.topic));
    const complete = element("td", "moment", each.completeMs === null ? element("b", "", "nothing") : minute(Number(each.completeMs)));
    complete.append(element("span", "small", behind(each.completeMs, flow.auditMs)));
    return element("tr", "", element("td", "name-cell", button), complete, element("td", "text", sentenceNode(each.waitsFor)));
  });
  by("watermarks").querySelector("tbody").replaceChildren(...rows);
  by("watermark-table").hidden = !rows.length;
  const more = flow.watermarks.length - shown.length + flow.watermarksLeftOut;
  by("watermarks-note").textContent = rows.length ? (more ? `${count(more)} other topics are further on.` : "") : "No topic has been counted yet.";
  if (focused !== undefined) [...document.querySelectorAll("[data-watermark]")].find((button) => button.dataset.watermark === focused)?.focus();
}
