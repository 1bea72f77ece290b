// What happens when, and what the page begins with.
document.addEventListener("click", ({ target }) => {
  if (target.matches(".sort")) sort(target);
  if (target.matches(".cell")) open(target.id.slice("cell-".length));
  if (target === dialog) dialog.close(); // its backdrop
});
document.addEventListener("keydown", (event) => {
  if (!event.key.startsWith("Arrow") || !event.target.matches(".cell")) return;
  event.preventDefault();
  move(event.target, event.key);
});
document.getElementById("filter").addEventListener("change", ({ target }) => filter(target.value));
document.addEventListener("change", ({ target }) => {
  if (!target.matches(".choice")) return;
  const pictures = target.closest("section").querySelectorAll(":scope > .picture");
  pictures.forEach((each, i) => (each.hidden = i !== Number(target.value)));
});
dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
for (const table of document.querySelectorAll(".values")) {
  [...table.querySelectorAll(".cell")].slice(1).forEach((button) => (button.tabIndex = -1));
}

// What an address asks for: a cell's sheet, or two methods.
function route() {
  if (location.hash.startsWith("#cell-")) open(location.hash.slice("#cell-".length));
  if (location.hash.startsWith("#compare&")) compareAsked(location.hash);
}

addEventListener("hashchange", route);
startCompare();
route();
