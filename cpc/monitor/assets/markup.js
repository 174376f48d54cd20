// Shows the tables and lists that the server writes as nodes [tag, attributes, words or nodes] (markup.py). What stays
// the same stays in place, with its focus, its scroll position and a click that has only begun.
(function () {
  const shown = {}; // by the id of the part: its content, as JSON

  function fill(parent, content) {
    if (typeof content === "string") {
      if (parent.textContent !== content) parent.textContent = content;
      return;
    }
    if (!parent.children.length) parent.textContent = "";
    content.forEach(([tag, attributes, inside], place) => {
      const element = elementAt(parent, place, tag, attributes.id);
      for (const name of element.getAttributeNames()) {
        if (!(name in attributes)) element.removeAttribute(name);
      }
      for (const [name, value] of Object.entries(attributes)) {
        if (element.getAttribute(name) !== value) element.setAttribute(name, value);
      }
      fill(element, inside);
    });
    while (parent.children.length > content.length) parent.lastElementChild.remove();
  }

  // The child at that place; moved or made if it is not there.
  function elementAt(parent, place, tag, id) {
    const there = parent.children[place];
    if (there && there.localName === tag && there.id === (id || "")) return there;
    const known = id && document.getElementById(id);
    const element = known && known.parentElement === parent ? known : document.createElement(tag);
    parent.insertBefore(element, there || null);
    return element;
  }

  let numAsked = 0; // so that asking for the same again is something new
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-show], [data-sort]");
    if (!button) return;
    const { show, sort } = button.dataset;
    const [store, what] = show === undefined ? ["sort-asked", sort] : ["show-asked", show];
    window.dash_clientside.set_props(store, { data: [what, ++numAsked] });
  });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.markup = {
    // Of every part by its id.
    show: function (parts) {
      const focused = document.activeElement;
      for (const [id, node] of Object.entries(parts || {})) {
        const written = JSON.stringify(node);
        if (shown[id] === written) continue;
        fill(document.getElementById(id), [node]);
        shown[id] = written;
      }
      // A row that moved has lost it.
      if (document.activeElement !== focused && focused.isConnected) focused.focus({ preventScroll: true });
    },
  };
})();
