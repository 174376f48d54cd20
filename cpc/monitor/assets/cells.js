// The badges of a run as coloured words in the table of runs.
window.dashAgGridComponentFunctions = {
  Badges: ({ value }) => (value || []).map((name) => React.createElement("span", { className: `badge ${name}`, key: name }, name)),
};
