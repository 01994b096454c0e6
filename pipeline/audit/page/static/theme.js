// The switch between light and dark. Without a choice the page follows the system.

const KEY = "audit-theme";
const CHOICES = ["system", "light", "dark"];

function stored() {
  try {
    const found = localStorage.getItem(KEY);
    return CHOICES.includes(found) ? found : "system";
  } catch {
    return "system"; // a browser that keeps nothing
  }
}

function keep(choice) {
  try {
    localStorage.setItem(KEY, choice);
  } catch {
    // The choice holds until the page is left.
  }
}

const apply = (choice) => (document.documentElement.dataset.theme = choice);

/** Joins the select element to the theme; `repaint` is called after each change, of the system's choice, too. */
export function joinTheme(select, repaint) {
  select.value = stored();
  apply(select.value);
  select.addEventListener("change", () => {
    apply(select.value);
    keep(select.value);
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
