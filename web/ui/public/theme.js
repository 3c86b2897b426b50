// Sets the theme before the first paint. A file of its own, as the page's policy allows no inline script.
(function () {
  var choice = null;
  try {
    choice = localStorage.getItem('spanflame.theme');
  } catch (e) {
    // storage is switched off
  }
  var dark = choice === 'dark' || (choice !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
})();
