// A view of another distribution: it has what the studio's views have, and imports the studio's parts.

import { element } from "/studio/dom.js";

export const view = {
  id: "toy",
  label: "Toys",
  icon: "dice",
  models: (models) => models.filter((model) => model.id.startsWith("toy_")),
  build: ({ models }) => ({
    element: element(
      "section",
      { class: "card stack" },
      element("h1", {}, "Toys"),
      element("p", {}, models.map((model) => model.id).join(", ")),
    ),
    close: () => undefined,
  }),
};
